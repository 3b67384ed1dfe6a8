"""The times of batches, from the requests that were sent and what Triton and its guard saw."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.errors import WorkError
from millrace.serving.profile.batch_level import Level
from millrace.serving.profile.pauses import is_usual
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.open_loop import SentLoad
from millrace.serving.triton.request_trace import Traced

NONE = np.zeros(0)


def service_times(
    sent: Sequence[tuple[SentLoad, NDArray[np.int64]]],
    traced: Traced | None,
    bursts: int,
    instances: int = 1,
    at_guard: NDArray[np.float64] = NONE,
) -> ServiceTimes:
    """Return the times of batches from what was sent, and what Triton traced.

    Args:
        sent: the runs in their order, with the rows of each request.
        traced: what Triton traced; the last of its requests are those that were sent.
        bursts: how many of the runs are bursts on an idle machine; they come first.
        instances: instances of the model.
        at_guard: seconds of each request at the guard, float64, in their order; the last of them
            are those that were sent. If they are fewer, those of the client count.

    Raises:
        WorkError: Triton did not trace all requests.
    """
    many = sum(len(rows) for _, rows in sent)
    seen = 0 if traced is None else len(traced.received)
    if traced is None or seen < many:
        raise WorkError(
            "Triton's trace does not have all requests that were sent",
            seen=f"{seen:,} requests",
            valid=f"{many:,}",
            hint="run the command again",
        )
    runs: list[_Run] = []
    guarded = at_guard[-many:] if len(at_guard) >= many else np.full(many, np.nan)
    end = 0
    for load, rows in sent:
        start, end = end, end + len(rows)
        part = traced.part(seen - many + start, seen - many + end)
        runs.append(_Run(load, rows.astype(np.float64), part, guarded[start:end]))
    sizes, seconds = _idle_times(runs[:bursts])
    idle = ServiceTimes(sizes, seconds, ())
    levels = (_level(run, idle, instances) for run in runs[bursts:] if run.is_open)
    return replace(idle, levels=tuple(sorted(levels, key=lambda each: each.rate)))


@dataclass(frozen=True)
class _Run:
    """One run of requests, as they were sent, as Triton traced them, and seconds at the guard."""

    load: SentLoad
    rows: NDArray[np.float64]
    traced: Traced
    at_guard: NDArray[np.float64]

    @property
    def is_open(self) -> bool:
        """Whether requests came at a rate, and not at once."""
        return bool(self.load.due[-1] > 0)

    @cached_property
    def is_usual(self) -> NDArray[np.bool_]:
        """Which requests were sent while the machine did not pause, bool `[n]`."""
        return is_usual(self.load.latency)

    @property
    def inside(self) -> NDArray[np.float64]:
        """The seconds of each request in queue and batch, float64 `[n]`."""
        return self.traced.ended - self.traced.queued

    def batches(self) -> "_Batches":
        """Return the batches in the order of their starts."""
        starts, members = np.unique(self.traced.started, return_inverse=True)
        ends, queued = np.zeros(len(starts)), np.full(len(starts), np.inf)
        np.maximum.at(ends, members, self.traced.ended)
        np.minimum.at(queued, members, self.traced.queued)
        rows = np.bincount(members, weights=self.rows).astype(np.float64)
        usual = np.bincount(members, weights=self.is_usual) > 0
        return _Batches(rows, queued, starts, ends, usual, members)


@dataclass(frozen=True)
class _Batches:
    """Batches in the order of their starts.

    Attributes:
        rows: rows of each, float64 `[n]`.
        queued: when its first request came into the queue, float64 `[n]`, seconds.
        starts: when it started, float64 `[n]`, seconds.
        ends: when it ended, float64 `[n]`, seconds.
        is_usual: whether the machine did not pause at that time, bool `[n]`.
        members: the batch of each request, int64 `[requests]`.
    """

    rows: NDArray[np.float64]
    queued: NDArray[np.float64]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    is_usual: NDArray[np.bool_]
    members: NDArray[np.int64]

    @property
    def busy(self) -> NDArray[np.int64]:
        """The instances that are busy when each starts, itself included, int64 `[n]`."""
        # starts ascend: of the earlier batches, those are busy that have not ended
        pairs = enumerate(self.starts)
        return np.array([1 + int((self.ends[:n] > start).sum()) for n, start in pairs], np.int64)

    def free_from(self, instances: int) -> NDArray[np.float64]:
        """Return from when an instance was free for each, float64 `[n]`."""
        found, latest = np.zeros(len(self.ends)), [-np.inf] * instances
        for number, end in enumerate(self.ends):
            found[number] = latest[0]
            heapq.heappushpop(latest, end)
        return found


def _idle_times(runs: Sequence[_Run]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return batch sizes and their median seconds, from the bursts that became one batch."""
    found: dict[float, list[float]] = {}
    for run in runs:
        batches = run.batches()
        if len(batches.rows) == 1:
            seconds = float(batches.ends[0] - batches.starts[0])
            found.setdefault(float(batches.rows[0]), []).append(seconds)
    sizes = tuple(sorted(found))
    return sizes, tuple(float(np.median(found[size])) for size in sizes)


def _level(run: _Run, idle: ServiceTimes, instances: int) -> Level:
    batches, usual = run.batches(), run.is_usual
    free_from = batches.free_from(instances)
    # Triton needs some time until a batch starts, and the instance waits meanwhile
    could_start = np.minimum(np.maximum(batches.queued, free_from), batches.starts)
    seconds = batches.ends - could_start
    opening = (batches.starts - could_start) * _joined_share(
        run.traced.queued, batches, could_start
    )
    alone = np.array([idle.idle_seconds(each) for each in batches.rows])
    at_guard = np.where(np.isfinite(run.at_guard), run.at_guard, run.load.latency)
    return Level(
        rate=len(run.load.due) / float(run.load.due[-1]),
        rows=batches.rows[batches.is_usual],
        factors=(seconds / alone)[batches.is_usual],
        busy=batches.busy[batches.is_usual],
        waited=(batches.queued < free_from)[batches.is_usual],
        opening=opening[batches.is_usual],
        inside=run.inside[usual],
        overhead=(run.load.latency - run.inside)[usual],
        at_guard=(at_guard - run.inside)[usual],
    )


def _joined_share(
    queued: NDArray[np.float64], batches: _Batches, could_start: NDArray[np.float64]
) -> float:
    """Return the share of a batch's start in which requests still join it.

    It is the share of those that come then which do, among batches that are not full; 1 if none
    comes then.

    Args:
        queued: when each request came into the queue, float64 `[requests]`, seconds.
        batches: the batches of the requests.
        could_start: when each could start, float64 `[n]`, seconds.
    """
    has_room = batches.rows < batches.rows.max()
    ordered = np.sort(queued)
    until = np.searchsorted(ordered, batches.starts)
    came = until - np.searchsorted(ordered, could_start, "right")
    joined = np.bincount(batches.members, weights=queued > could_start[batches.members])
    many = float(came[has_room].sum())
    return min(1.0, float(joined[has_room].sum()) / many) if many else 1.0
