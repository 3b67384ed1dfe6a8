"""What was measured of batches at one rate of requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NEAREST = 50
"""How many batches of the most similar sizes give the usual factor of a size."""
OTHER_START = 0.5
"""How different a batch is from one that waited if it did not: like one of 1.6 times the rows."""
FACTOR_DIGITS, SECOND_DIGITS = 4, 7
"""Digits after the point that are kept of a factor, and of seconds."""
SHORTEST = 1e-9
"""Seconds below which a time outside of a batch counts as so many: clocks differ a little."""
OF_BATCHES = {
    "rows": np.float64,
    "factors": np.float64,
    "busy": np.int64,
    "waited": np.bool_,
    "opening": np.float64,
}
OF_REQUESTS = dict.fromkeys(("inside", "overhead", "at_guard"), np.float64)
TYPES: dict[str, Any] = {**OF_BATCHES, **OF_REQUESTS}
"""The dtype of each array of a level."""


@dataclass(frozen=True)
class Level:
    """What was measured at one rate.

    Attributes:
        rate: requests per second.
        rows: rows of each batch, float64 `[batches]`.
        factors: seconds of each batch, from when it could start, divided by those of so many rows
            on an idle machine, float64 `[batches]`.
        busy: instances that were busy when it started, itself included, int64 `[batches]`.
        waited: whether its first request waited for an instance, bool `[batches]`.
        opening: seconds in which requests still joined it after it could start, float64
            `[batches]`.
        inside: seconds of each request in queue and batch, float64 `[requests]`.
        overhead: seconds of each request outside of queue and batch: network, server, client;
            float64 `[requests]`.
        at_guard: the same as the guard sees it, without the client, float64 `[requests]`.
    """

    rate: float
    rows: NDArray[np.float64]
    factors: NDArray[np.float64]
    busy: NDArray[np.int64]
    waited: NDArray[np.bool_]
    opening: NDArray[np.float64]
    inside: NDArray[np.float64]
    overhead: NDArray[np.float64]
    at_guard: NDArray[np.float64]

    @property
    def is_whole(self) -> bool:
        """Whether all was measured of each batch, and of each request."""
        lengths = (
            {len(getattr(self, name)) for name in part} for part in (OF_BATCHES, OF_REQUESTS)
        )
        return all(len(each) == 1 and 0 not in each for each in lengths)

    def usual_factor(self, rows: float, busy: int, waited: bool) -> float:
        """Return the median factor of the batches that are most like one.

        Args:
            rows: rows of the batch.
            busy: instances that are busy; batches with another number count if others are few.
            waited: whether its first request waited for an instance.
        """
        same = self.busy == busy
        chosen = np.flatnonzero(same if same.sum() >= NEAREST else same | True)
        distance = np.abs(np.log(self.rows[chosen] / rows))
        distance += OTHER_START * (self.waited[chosen] != waited)
        nearest = chosen[np.argsort(distance, kind="stable")[:NEAREST]]
        return float(np.median(self.factors[nearest]))

    @cached_property
    def places(self) -> NDArray[np.float64]:
        """Where each request's time outside of its batch is among all, from 0 to 1.

        The request with the shortest time inside comes first.
        """
        own, ordered = np.sort(self.overhead), self.overhead[np.argsort(self.inside, kind="stable")]
        before, after = (np.searchsorted(own, ordered, side) for side in ("left", "right"))
        return np.asarray((before + after) / (2 * len(own)), np.float64)

    @cached_property
    def noise(self) -> NDArray[np.float64]:
        """The factor of each batch, divided by the usual one, in their order."""
        lists = (each.tolist() for each in (self.rows, self.busy, self.waited))
        keys = list(zip(*lists, strict=True))
        usual = {key: self.usual_factor(*key) for key in set(keys)}
        usually = np.array([usual[key] for key in keys], np.float64)
        return np.asarray(self.factors / usually, np.float64)

    def to_json(self) -> dict[str, Any]:
        """Return the level as JSON; `from_json` reads it."""
        values = {name: getattr(self, name).tolist() for name in ("rows", "busy")}
        values["factors"] = self.factors.round(FACTOR_DIGITS).tolist()
        values["waited"] = self.waited.astype(np.int64).tolist()
        for name in ("opening", *OF_REQUESTS):
            values[name] = getattr(self, name).round(SECOND_DIGITS).tolist()
        return {"rate": self.rate, **values}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Level":
        """Return the level of `to_json`.

        Raises:
            KeyError: something is missing.
            TypeError: a value is of another kind.
            ValueError: a value is no number.
        """
        arrays = {name: np.array(values[name], dtype) for name, dtype in TYPES.items()}
        return cls(float(values["rate"]), **arrays)
