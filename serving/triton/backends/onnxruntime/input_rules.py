"""Checks requests by the rules of the version's dataset, in `features.json` beside `model.onnx`.

The rules and their texts are those of ingestion and batch inference. They are needed because an
ONNX graph accepts any number: for a column of 3 categories it would answer category 7 with full
confidence.
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
"""Text between the row number and the reason in an error message."""


class InputRules:
    """The allowed values of each column of the input tensor.

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

    def check_rows(self, rows: Array) -> Array:
        """Return bool `[rows, width]`: whether each value is allowed."""
        found: Array = (rows >= self.low) & (rows <= self.high)  # false for NaN
        if self.whole.size:
            values = rows[:, self.whole]
            found[:, self.whole] &= values == np.floor(values)
        if self.has_nullable:
            found |= np.isnan(rows) & self.nullable
        return found

    def find_faults(self, requests: Sequence[Array]) -> dict[int, str]:
        """Return why each refused request is refused (its first bad row and column), by position.

        Args:
            requests: arrays `[rows, width]`. A request of another width is not checked, because
                ONNX Runtime refuses it.
        """
        positions = [
            position
            for position, request in enumerate(requests)
            if request.ndim == 2 and request.shape[1:] == self.low.shape
        ]
        if not positions:
            return {}
        checked = [requests[position] for position in positions]
        is_allowed = self.check_rows(checked[0] if len(checked) == 1 else np.concatenate(checked))
        if is_allowed.all():
            return {}
        found: dict[int, str] = {}
        start = 0
        for position, request in zip(positions, checked, strict=True):
            end = start + len(request)
            is_bad = ~is_allowed[start:end].all(axis=1)
            start = end
            if is_bad.any():
                row = int(is_bad.argmax())
                found[position] = f"row {row + 1} {REFUSED}{self.explain(request[row])}"
        return found

    def explain(self, row: Array) -> str:
        """Return the reason why a row is refused, and the wrong value."""
        start = 0
        for feature in self.features:
            part = row[start : start + feature["width"]]
            start += feature["width"]
            text, failed = find_fault(feature, part)
            if text:
                return f"{feature['name']} {text}; seen: {part[failed][0]:g}"
        raise AssertionError("the row has no fault")


def find_fault(feature: dict[str, Any], part: Array) -> tuple[str, Array]:
    """Return the text of a feature's fault ("" if there is none) and a mask of faulty values."""
    missing = np.isnan(part)
    tests = [
        (np.isinf(part), feature["unreadable"]),
        (missing & (not feature["nullable"]), feature["missing"]),
        (~missing & bool(feature["whole"]) & (part != np.floor(part)), feature["fraction"]),
        (part < np.float32(feature["low"]), feature["below"]),
        (part > np.float32(feature["high"]), feature["above"]),
    ]
    return next(((text, failed) for failed, text in tests if failed.any()), ("", missing))


def load_rules(version: Path) -> InputRules | None:
    """Return the rules of a version; None if it has no `features.json`."""
    file = version / FILE
    return InputRules(file.read_text()) if file.exists() else None
