"""A and B in turn: how the benchmarks measure, and how many measurements become one number."""

import statistics
import time
from collections.abc import Callable, Sequence

Measure = Callable[[], float]


def in_turn(
    a: Measure, b: Measure, rounds: int, dropped: int = 1
) -> tuple[list[float], list[float]]:
    """Measure A and B alternately: A B, B A, A B, …, so that neither always comes second.

    Args:
        a: measures A once.
        b: measures B once.
        rounds: measurements of each to keep.
        dropped: rounds before them, thrown away.
    """
    pairs = [_pair(a, b, swapped=number % 2 == 1) for number in range(dropped + rounds)]
    return [x for x, _ in pairs[dropped:]], [y for _, y in pairs[dropped:]]


def _pair(a: Measure, b: Measure, swapped: bool) -> tuple[float, float]:
    if swapped:
        y = b()
        return a(), y
    return a(), b()


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the median of `a / b`, round by round."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the median of `a - b`, round by round."""
    return statistics.median(x - y for x, y in zip(a, b, strict=True))


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def timed(call: Callable[[], object], seconds: float) -> list[float]:
    """Call again and again for so long, and return the seconds of each call."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while (start := time.perf_counter()) < deadline:
        call()
        times.append(time.perf_counter() - start)
    return times
