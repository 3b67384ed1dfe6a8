"""How long batches take on a real Triton, as measured, for the event model to draw from.

A batch takes the time that its rows need on an idle machine, times a factor. The factor, and what a
request needs outside of its batch, depend on the load: the server's own threads, the client and the
instances share the cores. So both are measured at several rates, and drawn from the two rates next
to the one in question. They are drawn in blocks of successive ones, since a machine is slow for
some time and then fast again, and a queue grows in the slow times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.twin import Service

DRAWN = 4096
"""How many random numbers are drawn at a time; one by one takes ten times as long."""
NEAREST = 50
"""How many batches of the most similar sizes give the usual factor of a size."""
FACTOR_DIGITS, SECOND_DIGITS = 4, 7
"""Digits after the point that are kept of a factor, and of seconds."""
BLOCK = 40
"""How many successive batches, or requests, are drawn together."""


@dataclass(frozen=True)
class Level:
    """What was measured at one rate.

    Attributes:
        rate: requests per second.
        rows: rows of each batch, float64 `[batches]`.
        factors: seconds of each batch, divided by those of so many rows on an idle machine,
            float64 `[batches]`.
        busy: instances that were busy when it started, itself included, int64 `[batches]`.
        overhead: seconds of each request outside of queue and batch: network, server, client;
            float64 `[requests]`.
    """

    rate: float
    rows: NDArray[np.float64]
    factors: NDArray[np.float64]
    busy: NDArray[np.int64]
    overhead: NDArray[np.float64]

    @property
    def lengths(self) -> set[int]:
        """The lengths of what was measured of batches, which should be one."""
        return {len(self.rows), len(self.factors), len(self.busy)}

    def usual_factor(self, rows: float, busy: int) -> float:
        """Return the median factor of the batches that are most like one.

        Args:
            rows: rows of the batch.
            busy: instances that are busy; batches with another number count if others are few.
        """
        same = self.busy == busy
        chosen = np.flatnonzero(same if same.sum() >= NEAREST else same | True)
        distance = np.abs(np.log(self.rows[chosen] / rows))
        nearest = chosen[np.argsort(distance, kind="stable")[:NEAREST]]
        return float(np.median(self.factors[nearest]))

    @cached_property
    def noise(self) -> NDArray[np.float64]:
        """The factor of each batch, divided by the usual one, in their order."""
        usual: dict[tuple[float, int], float] = {}
        for key in zip(self.rows.tolist(), self.busy.tolist(), strict=True):
            if key not in usual:
                usual[key] = self.usual_factor(*key)
        keys = zip(self.rows.tolist(), self.busy.tolist(), strict=True)
        usually = np.array([usual[key] for key in keys], np.float64)
        return np.asarray(self.factors / usually, np.float64)


@dataclass(frozen=True)
class ServiceTimes:
    """The measured times of one variant with so many instances and threads.

    Attributes:
        rows: batch sizes that were measured on an idle machine, ascending.
        seconds: median seconds of each.
        levels: what was measured under load, by ascending rate.
    """

    rows: tuple[float, ...]
    seconds: tuple[float, ...]
    levels: tuple[Level, ...]

    def idle_seconds(self, rows: float) -> float:
        """Return the seconds of a batch on an idle machine, on a line between measured sizes."""
        return _interpolate(rows, self.rows, self.seconds)

    def service(self, rate: float, drawn: np.random.Generator) -> Service:
        """Return what draws the seconds of a batch.

        Args:
            rate: requests per second.
            drawn: source of randomness.
        """
        (low, share), (high, _) = self._beside(rate)
        noise = _blocks((low.noise, share), (high.noise, 1 - share), DRAWN, drawn)
        usual: dict[tuple[int, int], float] = {}
        left = noise.tolist()

        def seconds(rows: int, busy: int) -> float:
            if (known := usual.get((rows, busy))) is None:
                below, above = (each.usual_factor(rows, busy) for each in (low, high))
                factor = share * below + (1 - share) * above
                known = usual[rows, busy] = self.idle_seconds(rows) * factor
            if not left:
                left.extend(noise.tolist())
            return float(known * left.pop())

        return seconds

    def overhead(self, rate: float, many: int, drawn: np.random.Generator) -> NDArray[np.float64]:
        """Draw what requests need outside of queue and batch, float64 `[many]`, in seconds."""
        (low, share), (high, _) = self._beside(rate)
        return _blocks((low.overhead, share), (high.overhead, 1 - share), many, drawn)

    def _beside(self, rate: float) -> tuple[tuple[Level, float], tuple[Level, float]]:
        """Return the levels below and above a rate, with their shares."""
        rates = [level.rate for level in self.levels]
        right = int(np.searchsorted(rates, rate))
        low = self.levels[max(right - 1, 0)]
        high = self.levels[min(right, len(rates) - 1)]
        if low is high:
            return (low, 1.0), (high, 0.0)
        share = (high.rate - rate) / (high.rate - low.rate)
        return (low, share), (high, 1 - share)

    def to_json(self) -> dict[str, Any]:
        """Return the times as JSON; `from_json` reads them."""
        levels = [
            {
                "rate": level.rate,
                "rows": level.rows.tolist(),
                "factors": level.factors.round(FACTOR_DIGITS).tolist(),
                "busy": level.busy.tolist(),
                "overhead": level.overhead.round(SECOND_DIGITS).tolist(),
            }
            for level in self.levels
        ]
        return {"rows": list(self.rows), "seconds": list(self.seconds), "levels": levels}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ServiceTimes":
        """Return the times of `to_json`.

        Raises:
            ValueError: the values are not such times.
        """
        try:
            levels = tuple(
                Level(
                    float(each["rate"]),
                    np.array(each["rows"], np.float64),
                    np.array(each["factors"], np.float64),
                    np.array(each["busy"], np.int64),
                    np.array(each["overhead"], np.float64),
                )
                for each in values["levels"]
            )
            found = cls(tuple(values["rows"]), tuple(values["seconds"]), levels)
        except (KeyError, TypeError) as error:
            raise ValueError("these are no measured service times") from error
        alike = {len(found.rows), len(found.seconds)}, *(each.lengths for each in levels)
        if any(len(lengths) > 1 or 0 in lengths for lengths in alike):
            raise ValueError("these measured service times are not whole")
        return found


def _blocks(
    low: tuple[NDArray[np.float64], float],
    high: tuple[NDArray[np.float64], float],
    many: int,
    drawn: np.random.Generator,
) -> NDArray[np.float64]:
    """Draw blocks of successive values from two series, each with its share; float64 `[many]`."""
    count = max(1, -(-many // BLOCK))
    from_low = drawn.random(count) < low[1]
    blocks = [low[0] if each else high[0] for each in from_low]
    starts = (int(at * len(block)) for at, block in zip(drawn.random(count), blocks, strict=True))
    places = np.arange(BLOCK)
    taken = [block[(at + places) % len(block)] for at, block in zip(starts, blocks, strict=True)]
    drawn_values: NDArray[np.float64] = np.concatenate(taken)[:many]
    return drawn_values


def _interpolate(rows: float, sizes: Sequence[float], seconds: Sequence[float]) -> float:
    if len(sizes) == 1:
        return seconds[0]
    right = min(max(1, int(np.searchsorted(sizes, rows))), len(sizes) - 1)
    left = right - 1
    slope = (seconds[right] - seconds[left]) / (sizes[right] - sizes[left])
    return max(seconds[left] + slope * (rows - sizes[left]), min(seconds) / 2)
