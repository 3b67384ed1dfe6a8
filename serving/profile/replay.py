"""Replay recorded requests: for how many minutes would a configuration have missed its goal?

The requests go through the event model in short steps, each with the times that were measured at
the step's rate. What waits at the end of a step waits in the next one too. Minutes are judged as a
whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.search import SEED, BatchConfiguration
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals, Outcome, simulate

WINDOW = 60.0
"""Seconds of a window."""
STEP = 5.0
"""Seconds of a step: a burst lasts some seconds, and batches are faster at its rate."""
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
        busy: seconds that the instances computed, together, in batches that began in it.
    """

    start: float
    requests: int
    p99_ms: float
    is_missed: bool
    busy: float = 0.0


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
    waiting, free = np.zeros(0, np.int64), list[float]()
    latency = np.full(len(arrivals.times), np.nan)
    computed: dict[float, float] = {}
    for start, came in _windows(arrivals, STEP):
        chosen = np.concatenate([waiting, came])
        if not len(chosen):
            free = []
            continue
        end, rate = start + STEP, max(len(came), 1) / STEP
        part = Arrivals(arrivals.times[chosen], arrivals.rows[chosen])
        blocks = times.blocks(rate, len(chosen), drawn)
        outcome = simulate(part, configuration.batcher, times.service(blocks), free)
        has_begun = outcome.started < end
        overhead = blocks.overhead(outcome.latency)
        latency[chosen[has_begun]] = (outcome.latency + overhead)[has_begun]
        minute = float(start // window * window)
        computed[minute] = computed.get(minute, 0.0) + _busy_seconds(outcome, has_begun)
        waiting = chosen[~has_begun]
        free = _free_from(outcome.ended[has_begun], configuration.setup.instances, end)
    rest = simulate(
        Arrivals(arrivals.times[waiting], arrivals.rows[waiting]),
        configuration.batcher,
        times.service(times.blocks(1 / STEP, len(waiting), drawn)),
        free,
    )
    latency[waiting] = rest.latency
    judged = judge(arrivals, latency, bound_ms, window)
    return [replace(each, busy=computed.get(each.start, 0.0)) for each in judged]


def judge(
    arrivals: Arrivals, latency: NDArray[np.float64], bound_ms: float, window: float = WINDOW
) -> list[Window]:
    """Return which windows missed a goal, by the latency of each request in seconds."""
    return [_judge(start, latency[came], bound_ms) for start, came in _windows(arrivals, window)]


def describe_missed(windows: Sequence[Window], window: float = WINDOW) -> str:
    """Return for how long the goal would have been missed, in words; the first time is in UTC."""
    missed = [each for each in windows if each.is_missed]
    if not missed:
        return "would have met its goal all the time"
    minutes = len(missed) * window / 60
    return f"would have missed its goal for {minutes:.3g} min, first at {clock(missed[0].start)}"


def clock(seconds: float) -> str:
    """Return a time of day in UTC, of seconds since 1970."""
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M} UTC"


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


def _busy_seconds(outcome: Outcome, has_begun: NDArray[np.bool_]) -> float:
    """Return the seconds of the batches that have begun, each of which answers several requests."""
    batches = np.unique(np.stack([outcome.started, outcome.ended])[:, has_begun], axis=1)
    return float((batches[1] - batches[0]).sum())


def _judge(start: float, latency: NDArray[np.float64], bound_ms: float) -> Window:
    many = len(latency)
    if not many:
        return Window(start, 0, np.nan, is_missed=False)
    p99 = float(np.quantile(latency, 0.99, method="higher")) * 1e3
    return Window(start, many, p99, many >= FEWEST and p99 > bound_ms)
