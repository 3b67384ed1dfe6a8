"""Replay recorded requests: for how many minutes would a configuration have missed its goal?

The requests of one window after the other go through the event model, with the times that were
measured at the window's rate. What waits at the end of a window waits in the next one too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.search import SEED, BatchConfiguration
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals, simulate

WINDOW = 60.0
"""Seconds of a window."""
FEWEST = 100
"""Requests of a window below which its slowest is not called a p99; it may miss no goal."""


@dataclass(frozen=True)
class Window:
    """What would have become of the requests of one window.

    Attributes:
        start: when it began, seconds since 1970.
        requests: requests that came in it.
        p99_ms: 99th percentile of their latency.
        is_missed: whether that is over the bound, and there were enough requests to say so.
    """

    start: float
    requests: int
    p99_ms: float
    is_missed: bool


def replay(
    arrivals: Arrivals,
    configuration: BatchConfiguration,
    times: ServiceTimes,
    bound_ms: float,
    window: float = WINDOW,
) -> list[Window]:
    """Return what a configuration would have made of recorded requests, window by window.

    Args:
        arrivals: the requests, with times in seconds since 1970.
        configuration: the configuration.
        times: what was measured of its instances and threads.
        bound_ms: largest p99 latency.
        window: seconds of a window.
    """
    drawn = np.random.default_rng(SEED)
    found: list[Window] = []
    waiting = np.zeros(0, np.int64)
    free: list[float] = []
    latency = np.full(len(arrivals.times), np.nan)
    for start, came in _windows(arrivals, window):
        end, rate = start + window, max(len(came) / window, 1 / window)
        chosen = np.concatenate([waiting, came])
        part = Arrivals(arrivals.times[chosen], arrivals.rows[chosen])
        outcome = simulate(part, configuration.batcher, times.service(rate, drawn), free)
        has_begun = outcome.started < end
        overhead = times.overhead(rate, len(chosen), drawn)
        done = chosen[has_begun]
        latency[done] = (outcome.latency + overhead)[has_begun]
        waiting = chosen[~has_begun]
        free = _free_from(outcome.ended[has_begun], configuration.setup.instances, end)
        found.append(Window(start, len(came), np.nan, is_missed=False))
    rest = simulate(
        Arrivals(arrivals.times[waiting], arrivals.rows[waiting]),
        configuration.batcher,
        times.service(1 / window, drawn),
        free,
    )
    latency[waiting] = rest.latency
    return [_judged(each, arrivals, latency, bound_ms, window) for each in found]


def describe_missed(windows: Sequence[Window], window: float = WINDOW) -> str:
    """Return for how long the goal would have been missed, in words; the first time is in UTC."""
    missed = [each for each in windows if each.is_missed]
    if not missed:
        return "would have met its goal all the time"
    minutes = len(missed) * window / 60
    at = datetime.fromtimestamp(missed[0].start, UTC)
    return f"would have missed its goal for {minutes:.3g} min, first at {at:%H:%M} UTC"


def _windows(arrivals: Arrivals, window: float) -> Iterator[tuple[float, NDArray[np.int64]]]:
    """Yield the start of each window, and the numbers of the requests that came in it."""
    if not len(arrivals.times):
        return
    first = np.floor(arrivals.times[0] / window) * window
    count = int((arrivals.times[-1] - first) // window) + 1
    starts = first + window * np.arange(count + 1)
    cuts = np.searchsorted(arrivals.times, starts)
    for start, low, high in zip(starts[:-1], cuts[:-1], cuts[1:], strict=True):
        yield float(start), np.arange(low, high)


def _free_from(ended: NDArray[np.float64], instances: int, end: float) -> list[float]:
    """Return when each instance is free again, after the batches that began in a window."""
    last = np.unique(ended[ended > end])[::-1][:instances]
    return [*map(float, last), *[end] * (instances - len(last))]


def _judged(
    found: Window, arrivals: Arrivals, latency: NDArray[np.float64], bound_ms: float, window: float
) -> Window:
    low, high = np.searchsorted(arrivals.times, (found.start, found.start + window))
    if low == high:
        return found
    p99 = float(np.quantile(latency[low:high], 0.99, method="higher")) * 1e3
    return Window(found.start, found.requests, p99, high - low >= FEWEST and p99 > bound_ms)
