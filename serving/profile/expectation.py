"""What a version would have done with recorded requests, in figures that a person decides by."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.serving.guard.arrivals_table import RecordedArrivals
from millrace.serving.profile.replay import WINDOW, Window, describe_missed, replay
from millrace.serving.profile.search import BatchConfiguration
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals

MOST = 500_000
"""Requests that are replayed; of more, those of the busiest minutes. It takes about 10 s."""


@dataclass(frozen=True)
class Recorded:
    """Requests of a model, ready to be replayed.

    Attributes:
        arrivals: times in seconds since 1970, and rows.
        hours: from the first request to the last one.
        estimated: share of the requests whose rows were estimated from their bytes.
        left_out: requests in minutes that are less busy than those that are replayed.
        peak: when the busiest minute began; NaN without requests.
        peak_rate: its requests per second.
        measured_p99_ms: p99 of its requests at the guard, with the version that was live; None if
            it had none with an answer.
    """

    arrivals: Arrivals
    hours: float
    estimated: float
    left_out: int
    peak: float
    peak_rate: float
    measured_p99_ms: float | None

    @property
    def requests(self) -> int:
        """Number of all requests, also those that are not replayed."""
        return len(self.arrivals.times) + self.left_out


@dataclass(frozen=True)
class Expectation:
    """What a version would have done.

    Attributes:
        p99_ms: p99 of the busiest minute.
        missed_minutes: minutes in which the goal would have been missed.
        first_missed: when the first of them began, seconds since 1970; None if there is none.
        verdict: the same in words.
        share: share of all cores that computed, in the minutes that were replayed.
        peak_share: the same in the busiest minute.
        machine_seconds: seconds of the whole machine for a request.
        too_large: requests with more rows than the largest batch, which it would refuse.
    """

    p99_ms: float
    missed_minutes: int
    first_missed: float | None
    verdict: str
    share: float
    peak_share: float
    machine_seconds: float
    too_large: int


def prepare(found: RecordedArrivals, bytes_per_row: float, most: int = MOST) -> Recorded:
    """Return recorded requests as the event model takes them.

    Requests that were refused as wrong are left out. Rows that are not known are estimated: from
    the bytes per row of the requests whose rows are known, by protocol, or else of the model.

    Args:
        found: what was recorded.
        bytes_per_row: bytes of a row of the model's input.
        most: most requests to replay.
    """
    found = found.chosen(~found.is_refused)
    many = len(found.times)
    if not many:
        return Recorded(Arrivals(found.times, found.rows), 0.0, 0.0, 0, np.nan, 0.0, None)
    minutes, counts = np.unique(found.times // WINDOW, return_counts=True)
    peak = minutes[counts.argmax()]
    in_peak = found.seconds[found.times // WINDOW == peak]
    answered = in_peak[np.isfinite(in_peak)]
    chosen = np.isin(found.times // WINDOW, _busiest(minutes, counts, most))
    rows = estimate_rows(found, bytes_per_row)
    return Recorded(
        arrivals=Arrivals(found.times[chosen], rows[chosen]),
        hours=float(found.times[-1] - found.times[0]) / 3600,
        estimated=float((found.rows == 0).mean()),
        left_out=many - int(chosen.sum()),
        peak=float(peak * WINDOW),
        peak_rate=float(counts.max() / WINDOW),
        measured_p99_ms=float(np.quantile(answered, 0.99, method="higher")) * 1e3
        if len(answered)
        else None,
    )


def _busiest(
    minutes: NDArray[np.float64], counts: NDArray[np.int64], most: int
) -> NDArray[np.float64]:
    """Return the busiest minutes that together have at most so many requests; at least one."""
    order = np.argsort(-counts, kind="stable")
    count = max(1, int((counts[order].cumsum() <= most).sum()))
    return np.sort(minutes[order[:count]])


def estimate_rows(found: RecordedArrivals, bytes_per_row: float) -> NDArray[np.int64]:
    """Return the rows of each request, int64 `[n]`: exact where they are known."""
    rows = found.rows.copy()
    for protocol in (False, True):
        is_of_it = found.is_grpc == protocol
        known, unknown = is_of_it & (rows > 0), is_of_it & (rows == 0)
        size = bytes_per_row
        if known.any():
            size = float(np.median(found.sizes[known] / rows[known]))
        rows[unknown] = np.maximum(1, np.round(found.sizes[unknown] / max(size, 1.0)))
    return rows


def expect(
    recorded: Recorded,
    configuration: BatchConfiguration,
    times: ServiceTimes,
    bound_ms: float,
    cores: int,
) -> Expectation:
    """Return what a configuration would have done, as the guard sees it.

    Args:
        recorded: the requests; there is at least one.
        configuration: the configuration.
        times: what was measured of its instances and threads.
        bound_ms: the goal's largest p99.
        cores: cores of the machine.
    """
    arrivals = recorded.arrivals
    fits = arrivals.rows <= configuration.max_batch_size
    rows = np.minimum(arrivals.rows, configuration.max_batch_size)
    at_guard = times.seen_by_guard()
    windows = replay(Arrivals(arrivals.times, rows), configuration, at_guard, bound_ms)
    used = [each for each in windows if each.requests]
    threads = configuration.setup.threads
    at_peak = max(used, key=lambda each: each.requests)
    missed = [each.start for each in used if each.is_missed]
    return Expectation(
        p99_ms=at_peak.p99_ms,
        missed_minutes=len(missed),
        first_missed=missed[0] if missed else None,
        verdict=describe_missed(used),
        share=_core_share(used, threads, cores),
        peak_share=_core_share([at_peak], threads, cores),
        machine_seconds=sum(each.busy for each in used) * threads / cores / len(rows),
        too_large=int((~fits).sum()),
    )


def _core_share(windows: list[Window], threads: int, cores: int) -> float:
    busy = sum(each.busy for each in windows)
    return busy * threads / (len(windows) * WINDOW * cores)
