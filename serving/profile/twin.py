"""An event model of Triton's dynamic batcher: what latency a configuration would have at a load.

It follows `GetDynamicBatch` of Triton's core (`dynamic_batch_scheduler.cc`). A batch is made when
an instance is free: Triton makes it before, but adds what comes until an instance takes it, and for
a moment more. It has the waiting requests in their order, whole, up to `max_batch_size` rows. With
preferred sizes it ends at the last request with which it has exactly one of them. A smaller batch
waits for more rows, until the oldest request has waited for the queue delay. Higher priorities come
first (1 is the highest). A request whose timeout has passed when a batch is made is refused.

What it does not model: the network and the guard (what they need is added), instances that slow
each other down in another way than they were measured, a machine that does something else, and
models that answer before a batch is done.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

OVERLOAD = 0.98
"""Utilisation from which a load is more than the instances can do, if their batches are full too;
never quite 1, as they are idle before the first requests and after the last."""
FULL = 0.9
"""Share of the largest batch from which batches count as full."""


@dataclass(frozen=True)
class Service:
    """How long batches take; it may be drawn.

    Attributes:
        seconds: those of a batch, from when it could start, by its rows, the instances that are
            busy with it, and whether it waited for an instance.
        opening: the first of these seconds, in which requests still join it. It is called for each
            batch, before `seconds`.
    """

    seconds: Callable[[int, int, bool], float]
    opening: Callable[[], float] = lambda: 0.0


@dataclass(frozen=True)
class Batcher:
    """A configuration of the dynamic batcher.

    Attributes:
        max_batch_size: most rows of a batch.
        instances: instances of the model, each with one batch at a time.
        queue_delay: seconds for which a batch that is not full waits for more rows.
        preferred: preferred batch sizes in rows, ascending; empty for `max_batch_size` alone.
        timeout: seconds after which a waiting request is refused.
    """

    max_batch_size: int
    instances: int = 1
    queue_delay: float = 0.0
    preferred: tuple[int, ...] = ()
    timeout: float = float("inf")

    @property
    def largest_preferred(self) -> int:
        """The largest preferred batch size."""
        return max(self.preferred, default=self.max_batch_size)


@dataclass(frozen=True)
class Arrivals:
    """Requests of an open loop.

    Attributes:
        times: float64 `[n]`, seconds, ascending.
        rows: int64 `[n]`, rows of each request.
        priorities: int64 `[n]`, 1 is the highest; empty if all are equal.
    """

    times: NDArray[np.float64]
    rows: NDArray[np.int64]
    priorities: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


def poisson(rate: float, many: int, rows: int, drawn: np.random.Generator) -> Arrivals:
    """Return requests of independent clients.

    Args:
        rate: requests per second.
        many: number of requests.
        rows: rows of each.
        drawn: source of randomness.
    """
    times = np.cumsum(drawn.exponential(1 / rate, many))
    return Arrivals(times, np.full(many, rows, np.int64))


@dataclass(frozen=True)
class Outcome:
    """What became of each request.

    Attributes:
        arrived: float64 `[n]`, seconds.
        started: float64 `[n]`, when its batch started; infinite if it was refused.
        ended: float64 `[n]`, when its batch ended; infinite if it was refused.
        busy: seconds of all instances together.
        batches: number of batches.
        instances: number of instances.
        fullness: mean rows of a batch, as a share of the largest preferred one.
    """

    arrived: NDArray[np.float64]
    started: NDArray[np.float64]
    ended: NDArray[np.float64]
    busy: float
    batches: int
    instances: int
    fullness: float

    @property
    def latency(self) -> NDArray[np.float64]:
        """Seconds from arrival to answer, float64 `[n]`; infinite if it was refused."""
        return self.ended - self.arrived

    @property
    def queue(self) -> NDArray[np.float64]:
        """Seconds from arrival to the start of the batch, float64 `[n]`."""
        return self.started - self.arrived

    @property
    def utilisation(self) -> float:
        """Share of the instances' time in which they computed."""
        ends = self.ended[np.isfinite(self.ended)]
        span = float(ends.max() - self.arrived[0]) if len(ends) else 0.0
        return self.busy / (span * self.instances) if span else 0.0

    @property
    def is_overload(self) -> bool:
        """Whether the instances are never idle and cannot take more at a time.

        The queue then grows as long as the load lasts.
        """
        return self.utilisation > OVERLOAD and self.fullness > FULL


class _Queue:
    """The requests that come and wait, by priority."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._times, self._rows = arrivals.times.tolist(), arrivals.rows.tolist()
        self._levels = arrivals.priorities.tolist() or [0] * len(self._times)
        self._waiting: dict[int, deque[int]] = {
            level: deque() for level in sorted(set(self._levels))
        }
        self._came = self.rows = 0

    def next(self) -> float:
        """Return when the next request comes; infinite if none does."""
        return self._times[self._came] if self._came < len(self._times) else np.inf

    def let_in(self, until: float) -> None:
        """Have all wait that come until a time."""
        while self.next() <= until:
            self._waiting[self._levels[self._came]].append(self._came)
            self.rows += self._rows[self._came]
            self._came += 1

    def oldest(self) -> float:
        """Return when the oldest request arrived; infinite if none waits."""
        heads = (self._times[each[0]] for each in self._waiting.values() if each)
        return min(heads, default=np.inf)

    def drop(self, before: float) -> None:
        """Refuse what arrived before a time."""
        for waiting in self._waiting.values():
            while waiting and self._times[waiting[0]] < before:
                self.rows -= self._rows[waiting.popleft()]

    def batch(self, batcher: Batcher, *, is_late: bool) -> int:
        """Return of how many requests a batch is made now; 0 to wait for more.

        Args:
            batcher: the configuration.
            is_late: whether the oldest request has waited for the queue delay.
        """
        largest = batcher.largest_preferred
        pending = count = best = 0
        is_full = False
        for number in chain.from_iterable(self._waiting.values()):
            rows = self._rows[number]
            if count and pending + rows > largest and not best:
                best = count
            if count and pending + rows > batcher.max_batch_size:
                is_full = True
                break
            pending, count = pending + rows, count + 1
            if pending in batcher.preferred:
                best = count
        if best and not is_late:
            return best
        waits = not (is_full or pending >= largest or is_late) and batcher.queue_delay > 0
        return 0 if waits else count

    def take(self, count: int) -> tuple[list[int], int]:
        """Take so many requests, in their order; return them and their rows."""
        taken: list[int] = []
        for waiting in self._waiting.values():
            while waiting and len(taken) < count:
                taken.append(waiting.popleft())
        rows = sum(self._rows[number] for number in taken)
        self.rows -= rows
        return taken, rows


def simulate(
    arrivals: Arrivals, batcher: Batcher, service: Service, free_from: Sequence[float] = ()
) -> Outcome:
    """Return what becomes of requests.

    Args:
        arrivals: the requests; none has more rows than `max_batch_size`.
        batcher: the configuration.
        service: how long batches take.
        free_from: when each instance has done what it does now; empty: all are free.
    """
    times: list[float] = arrivals.times.tolist()
    started, ended = [np.inf] * len(times), [np.inf] * len(times)
    waiting, free = _Queue(arrivals), list(free_from) or [0.0] * batcher.instances
    heapq.heapify(free)
    computed_until = set(free_from)
    batches, busy, now = 0, 0.0, 0.0
    while waiting.rows or np.isfinite(waiting.next()):
        now = max(now, free[0], 0.0 if waiting.rows else waiting.next())
        waiting.let_in(now)
        waiting.drop(now - batcher.timeout)
        if not waiting.rows:
            continue
        oldest = waiting.oldest()
        due = oldest + batcher.queue_delay
        is_late = batcher.queue_delay > 0 and due <= now
        if not waiting.batch(batcher, is_late=is_late):
            heapq.heapreplace(free, min(due, waiting.next()))  # the instance looks again then
            continue
        # else the instance was idle, or waited for the delay
        waited = oldest <= free[0] and free[0] in computed_until
        start, now = now, now + service.opening()
        waiting.let_in(now)
        taken, rows = waiting.take(waiting.batch(batcher, is_late=is_late))
        seconds = service.seconds(rows, sum(each > start for each in free) + 1, waited)
        for number in taken:
            started[number], ended[number] = max(start, times[number]), start + seconds
        heapq.heapreplace(free, start + seconds)
        computed_until.add(start + seconds)
        busy, batches = busy + seconds, batches + 1
    begun, done = np.array(started), np.array(ended)
    answered = float(arrivals.rows[np.isfinite(done)].sum())
    full = answered / (batches * batcher.largest_preferred) if batches else 0.0
    return Outcome(arrivals.times, begun, done, busy, batches, batcher.instances, full)
