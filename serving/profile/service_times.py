"""How long batches take on a real Triton, as measured, for the event model to draw from.

A batch takes the time that its rows need on an idle machine, times a factor. The factor, and what a
request needs outside of its batch, depend on the load: the server's own threads, the client and the
instances share the cores. So both are measured at several rates, and drawn from the two rates next
to the one in question. Batches are drawn in blocks of successive ones, since a machine is slow for
some time and then fast again, and a queue grows in the slow times. A batch that waited for an
instance has a factor of its own: it takes longer, while Triton still answers the one before.
Requests join a batch for some time after it could start, until Triton has closed it. A request that
is long in queue and batch also needs long outside of them, as many come and go at that time, so
what it needs there is drawn from requests that were about as long inside, as measured by their
rank.

Between two rates the time outside of a batch has quantiles between those of both rates, on a
logarithmic scale. A mixture would have some requests of the higher rate, which may be one that the
server cannot take: then they are twenty times as slow, and the p99 is theirs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.batch_level import SHORTEST, Level
from millrace.serving.profile.twin import Service

BLOCK = 40
"""The batches of how many successive requests are drawn together."""
NEAR = 0.02
"""How far the rank of a request that is drawn may be from that of the one it is drawn for."""


@dataclass(frozen=True)
class Blocks:
    """Parts of two levels in the order in which they are drawn.

    Attributes:
        low: the level of the lower rate.
        high: the level of the higher rate.
        share: share of the lower one.
        from_low: which blocks are of it, bool `[blocks]`.
        begins: where each block begins, as a share of its level, float64 `[blocks]`.
        moved: by how much the rank of a request is moved, float64 `[blocks * BLOCK]`.
    """

    low: Level
    high: Level
    share: float
    from_low: NDArray[np.bool_]
    begins: NDArray[np.float64]
    moved: NDArray[np.float64]

    def batches(self) -> NDArray[np.float64]:
        """Return noise and opening of the batches of the blocks, float64 `[n, 2]`."""
        taken = []
        for is_low, begins in zip(self.from_low, self.begins, strict=True):
            level = self.low if is_low else self.high
            noise, size = level.noise, BLOCK * len(level.rows) / len(level.overhead)
            places = int(begins * len(noise)) + np.arange(max(1, round(size)))
            places %= len(noise)
            taken.append(np.stack([noise[places], level.opening[places]], 1))
        return np.concatenate(taken)

    def overhead(self, inside: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what requests need outside of queue and batch, float64 `[n]`, in seconds.

        Args:
            inside: seconds of each in queue and batch, float64 `[n]`; n at most as drawn.
        """
        many = len(inside)
        ranks = np.argsort(np.argsort(inside, kind="stable")) / many
        near = np.clip(ranks + self.moved[:many], 0, 1)

        def drawn(level: Level) -> NDArray[np.float64]:
            at = (near * len(level.places)).astype(np.int64)
            return np.asarray(level.places[np.minimum(at, len(level.places) - 1)], np.float64)

        from_low = np.repeat(self.from_low, BLOCK)[:many]
        places = np.where(from_low, drawn(self.low), drawn(self.high))
        quantiles = (np.quantile(each.overhead, places) for each in (self.low, self.high))
        low, high = (np.log(np.maximum(each, SHORTEST)) for each in quantiles)
        return np.asarray(np.exp(low * self.share + high * (1 - self.share)), np.float64)


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

    def seen_by_guard(self) -> "ServiceTimes":
        """Return the times as the guard sees them, without what the client needs."""
        levels = (replace(each, overhead=each.at_guard) for each in self.levels)
        return replace(self, levels=tuple(levels))

    def idle_seconds(self, rows: float) -> float:
        """Return the seconds of a batch on an idle machine, on a line between measured sizes."""
        return _interpolate(rows, self.rows, self.seconds)

    def blocks(self, rate: float, many: int, drawn: np.random.Generator) -> "Blocks":
        """Draw the blocks from which times of so many requests are taken.

        Args:
            rate: requests per second.
            many: requests.
            drawn: source of randomness.
        """
        low, high, share = self._beside(rate)
        count = max(1, -(-many // BLOCK))
        from_low, begins = drawn.random(count) < share, drawn.random(count)
        return Blocks(low, high, share, from_low, begins, drawn.uniform(-NEAR, NEAR, count * BLOCK))

    def service(self, blocks: "Blocks") -> Service:
        """Return what tells how long batches take, one batch after the other."""
        drawn = _Drawn(self, blocks)
        return Service(drawn.seconds, drawn.opening)

    def _beside(self, rate: float) -> tuple[Level, Level, float]:
        """Return the levels below and above a rate, and the share of the lower one."""
        rates = [level.rate for level in self.levels]
        right = int(np.searchsorted(rates, rate))
        low = self.levels[max(right - 1, 0)]
        high = self.levels[min(right, len(rates) - 1)]
        return low, high, 1.0 if low is high else (high.rate - rate) / (high.rate - low.rate)

    def to_json(self) -> dict[str, Any]:
        """Return the times as JSON; `from_json` reads them."""
        levels = [level.to_json() for level in self.levels]
        return {"rows": list(self.rows), "seconds": list(self.seconds), "levels": levels}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ServiceTimes":
        """Return the times of `to_json`.

        Raises:
            ValueError: the values are not such times.
        """
        try:
            levels = tuple(Level.from_json(each) for each in values["levels"])
            found = cls(tuple(values["rows"]), tuple(values["seconds"]), levels)
        except (KeyError, TypeError) as error:
            raise ValueError("these are no measured service times") from error
        is_whole = 0 < len(found.rows) == len(found.seconds)
        if not is_whole or not all(each.is_whole for each in levels):
            raise ValueError("these measured service times are not whole")
        return found


class _Drawn:
    """Draws the batches of some blocks, one after the other.

    Args:
        times: the measured times.
        blocks: the parts of them that are drawn.
    """

    def __init__(self, times: ServiceTimes, blocks: Blocks) -> None:
        self._times, self._blocks = times, blocks
        self._batches = blocks.batches().tolist()
        self._usual: dict[tuple[int, int, bool], float] = {}
        self._next = -1

    def opening(self) -> float:
        """Return the seconds in which requests still join the next batch."""
        self._next = (self._next + 1) % len(self._batches)
        return float(self._batches[self._next][1])

    def seconds(self, rows: int, busy: int, waited: bool) -> float:
        """Return the seconds of that batch."""
        if (usual := self._usual.get((rows, busy, waited))) is None:
            blocks = self._blocks
            low, high = (
                each.usual_factor(rows, busy, waited) for each in (blocks.low, blocks.high)
            )
            factor = blocks.share * low + (1 - blocks.share) * high
            usual = self._usual[rows, busy, waited] = self._times.idle_seconds(rows) * factor
        return float(usual * self._batches[self._next][0])


def _interpolate(rows: float, sizes: Sequence[float], seconds: Sequence[float]) -> float:
    if len(sizes) == 1:
        return seconds[0]
    right = min(max(1, int(np.searchsorted(sizes, rows))), len(sizes) - 1)
    left = right - 1
    slope = (seconds[right] - seconds[left]) / (sizes[right] - sizes[left])
    return max(seconds[left] + slope * (rows - sizes[left]), min(seconds) / 2)
