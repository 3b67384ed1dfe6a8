"""How many replicas a load needs: a function of the load, the profile's capacity and the clock.

It starts nothing. Its caller tells it what runs, and does what it says, or only logs it.

- **Up** at once, to as many as keep each replica below `TARGET` of its capacity. Where requests
  wait too long although the rate is not high (their rows are larger, the machine is slower), one
  more, but none while another is still starting: what is measured then is of too few replicas.
- **Down** by one, once the rest have taken the load with room for `DOWN_SECONDS`. The load of the
  rest is `load × N / (N - 1)`; a scaler that looks at today's load of each goes 2, 1, 2, 1.
- Without a rate nothing changes: a missing metric is neither no load nor an endless one.
- Another number of replicas than it wanted was set by a person, and is kept for `HAND_SECONDS`.

The capacity is that of the serving profile and is not measured again here, so a replica that has
just started, and is slow, does not lower it.
"""

import math
from dataclasses import dataclass, replace

TARGET = 0.8
"""Share of its capacity that a replica should have at most."""
ROOM = 0.9
"""Share of `TARGET` below which the load of the rest must be for a replica to go."""
DOWN_SECONDS = 300.0
WARM_SECONDS = 30.0
"""Seconds after a change in which the time in the queue does not count."""
HAND_SECONDS = 900.0
QUEUE_SHARE = 0.5
"""Share of the bound from which the time in the queue asks for one more replica."""


@dataclass(frozen=True)
class Bounds:
    """`serving.replicas`, and what the serving profile says of one replica.

    Attributes:
        fewest: `serving.replicas.min`.
        most: `serving.replicas.max`.
        capacity: requests per second of one replica within the goal.
        bound_ms: the goal's largest p99, in milliseconds.
    """

    fewest: int
    most: int
    capacity: float
    bound_ms: float


@dataclass(frozen=True)
class Seen:
    """What runs at a moment.

    Attributes:
        now: seconds of a clock that only goes forward.
        replicas: replicas that run or start.
        ready: those of them that answer.
        rate: requests per second to all of them; None if it is not known.
        queue_ms: mean time in the queue; None if it is not known. Triton says no percentiles of
            it, and a mean above `QUEUE_SHARE` of the bound leaves no room for the p99.
    """

    now: float
    replicas: int
    ready: int
    rate: float | None
    queue_ms: float | None = None


@dataclass(frozen=True)
class Memory:
    """What the scaler keeps from one look to the next.

    Attributes:
        wanted: the number that it wanted last; None before the first look.
        changed: when the number changed last.
        low_since: since when one replica less would do; None if it would not.
        by_hand: when a person set another number; None if nobody did, or long ago.
    """

    wanted: int | None = None
    changed: float = -math.inf
    low_since: float | None = None
    by_hand: float | None = None


@dataclass(frozen=True)
class Decision:
    """How many replicas to run.

    Attributes:
        replicas: their number.
        reason: why, for a log.
        memory: what to give to the next look.
    """

    replicas: int
    reason: str
    memory: Memory


def decide(bounds: Bounds, seen: Seen, memory: Memory) -> Decision:
    """Return how many replicas to run.

    Args:
        bounds: the limits, and one replica's capacity.
        seen: what runs.
        memory: of the last decision; `Memory()` at the first.
    """
    memory = _note_hand(seen, memory)
    within = min(max(seen.replicas, bounds.fewest), bounds.most)
    if within != seen.replicas:
        limits = f"serving.replicas allows {bounds.fewest} to {bounds.most}"
        return _change(seen, memory, within, limits)
    if memory.by_hand is not None:
        return _keep(seen, replace(memory, low_since=None), "a person set this number")
    if seen.rate is None or not math.isfinite(seen.rate):
        return _keep(seen, replace(memory, low_since=None), "the rate is not known")
    needed = min(bounds.most, _needed(bounds, seen.rate))
    if needed > seen.replicas:
        return _change(seen, memory, needed, f"{seen.rate:.0f} requests/s need {needed}")
    if _waits_too_long(bounds, seen, memory):
        reason = f"requests wait {seen.queue_ms:.0f} ms of {bounds.bound_ms:g} ms"
        return _change(seen, memory, seen.replicas + 1, reason)
    return _go_down(bounds, seen, memory)


def target_rate(capacity: float) -> float:
    """Return the requests per second of one replica that a cluster's scaler should aim at."""
    return TARGET * capacity


def scaler_figures(capacity: float, bound_ms: float) -> dict[str, float]:
    """Return what a cluster's own scaler of replicas needs to know, by name.

    Args:
        capacity: requests per second of one replica within the goal.
        bound_ms: the goal's largest p99, in milliseconds.
    """
    return {
        "scaler_requests_per_replica": target_rate(capacity),
        "scaler_queue_ms": QUEUE_SHARE * bound_ms,
        "scaler_down_seconds": DOWN_SECONDS,
    }


def _needed(bounds: Bounds, rate: float) -> int:
    if bounds.capacity <= 0:
        return bounds.most
    return max(bounds.fewest, math.ceil(rate / target_rate(bounds.capacity)))


def _waits_too_long(bounds: Bounds, seen: Seen, memory: Memory) -> bool:
    is_settled = seen.ready == seen.replicas and seen.now - memory.changed >= WARM_SECONDS
    if seen.queue_ms is None or not is_settled or seen.replicas >= bounds.most:
        return False
    return seen.queue_ms > QUEUE_SHARE * bounds.bound_ms


def _go_down(bounds: Bounds, seen: Seen, memory: Memory) -> Decision:
    """Return one replica less if the rest have had room for the load for long enough."""
    rest = seen.replicas - 1
    room = ROOM * target_rate(bounds.capacity) * rest
    if rest < bounds.fewest or (seen.rate or 0.0) > room:
        return _keep(seen, replace(memory, low_since=None), "enough")
    since = seen.now if memory.low_since is None else memory.low_since
    if seen.now - since < DOWN_SECONDS:
        return _keep(seen, replace(memory, low_since=since), f"{rest} would do")
    return _change(seen, memory, rest, f"{rest} have done for {DOWN_SECONDS:.0f} s")


def _note_hand(seen: Seen, memory: Memory) -> Memory:
    """Return the memory with what a person did since the last look."""
    if memory.wanted not in (None, seen.replicas):
        return Memory(seen.replicas, changed=seen.now, by_hand=seen.now)
    if memory.by_hand is not None and seen.now - memory.by_hand >= HAND_SECONDS:
        return replace(memory, by_hand=None)
    return memory


def _keep(seen: Seen, memory: Memory, reason: str) -> Decision:
    return Decision(seen.replicas, reason, replace(memory, wanted=seen.replicas))


def _change(seen: Seen, memory: Memory, replicas: int, reason: str) -> Decision:
    new = replace(memory, wanted=replicas, changed=seen.now, low_since=None)
    return Decision(replicas, reason, new)
