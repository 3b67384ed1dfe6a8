"""Holds requests to what the version's dataset holds its columns to: `features.json` beside it.

What ingestion and batch inference refuse is refused here, in the same words. A graph takes any
number: it answers the category 7 of 3 with all its confidence.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FILE = "features.json"
LARGEST = float(np.finfo(np.float32).max)
REFUSED = "cannot be answered: "
"""Between the number of the row and the reason."""


class InputRules:
    """What each place of the tensor may hold.

    Args:
        text: contents of `features.json`.
    """

    def __init__(self, text: str) -> None:
        values = json.loads(text)
        self.input: str = values["input"]
        self.features: list[dict[str, Any]] = values["features"]
        widths = [feature["width"] for feature in self.features]
        self.low = np.repeat(np.array([f["low"] for f in self.features], np.float32), widths)
        self.high = np.repeat(np.array([f["high"] for f in self.features], np.float32), widths)
        self.whole = np.flatnonzero(np.repeat([f["whole"] for f in self.features], widths))
        self.nullable = np.repeat([bool(f["nullable"]) for f in self.features], widths)
        self.has_nullable = bool(self.nullable.any())

    def allowed(self, rows: Array) -> Array:
        """Return bool `[rows, width]`: which places hold what they may."""
        found: Array = (rows >= self.low) & (rows <= self.high)  # which no NaN is
        if self.whole.size:
            places = rows[:, self.whole]
            found[:, self.whole] &= places == np.floor(places)
        if self.has_nullable:
            found |= np.isnan(rows) & self.nullable
        return found

    def faults(self, requests: Sequence[Array]) -> dict[int, str]:
        """Return why requests are refused, by their place; of each the first row and column.

        Args:
            requests: `[rows, width]` each; of one of another width nothing is said, for ONNX
                Runtime refuses it in its own words.
        """
        if not all(map(self._fits, requests)):
            alone = ((place, self.faults([r])) for place, r in enumerate(requests) if self._fits(r))
            return {place: found[0] for place, found in alone if found}
        rows = requests[0] if len(requests) == 1 else np.concatenate(requests)
        allowed = self.allowed(rows)
        if allowed.all():
            return {}
        found: dict[int, str] = {}
        start = 0
        for place, request in enumerate(requests):
            end = start + len(request)
            bad = ~allowed[start:end].all(axis=1)
            start = end
            if bad.any():
                row = int(bad.argmax())
                found[place] = f"row {row + 1} {REFUSED}{self.reason(request[row])}"
        return found

    def _fits(self, request: Array) -> bool:
        return request.ndim == 2 and request.shape[1:] == self.low.shape

    def reason(self, row: Array) -> str:
        """Return what is wrong with a row that is refused, and what it holds there."""
        start = 0
        for feature in self.features:
            part = row[start : start + feature["width"]]
            start += feature["width"]
            said, failed = fault_of(feature, part)
            if said:
                return f"{feature['name']} {said}; seen: {part[failed][0]:g}"
        raise AssertionError("nothing is wrong with this row")


def fault_of(feature: dict[str, Any], part: Array) -> tuple[str, Array]:
    """Return what is said of a feature's places, and which they are; "" where nothing is."""
    missing = np.isnan(part)
    tests = [
        (np.isinf(part), feature["unreadable"]),
        (missing & (not feature["nullable"]), feature["missing"]),
        (~missing & bool(feature["whole"]) & (part != np.floor(part)), feature["fraction"]),
        (part < np.float32(feature["low"]), feature["below"]),
        (part > np.float32(feature["high"]), feature["above"]),
    ]
    return next(((said, failed) for failed, said in tests if failed.any()), ("", missing))


def rules_in(version: Path) -> InputRules | None:
    """Return the rules of a version; None of one that was staged without."""
    file = version / FILE
    return InputRules(file.read_text()) if file.exists() else None
