"""Prove from counted requests that a latency quantile is within a bound.

The test is MLPerf's: of `n` requests, `k` took longer than the bound. If each took longer with
probability 1 - q, so few would be over the bound with probability `binom.cdf(k, n, 1 - q)`. A
bound is proved where this is at most 1 - confidence. So p99 with 99% confidence takes 459, 662,
838, 1001 or 1157 requests where 0 to 4 are over.

Who looks after every request and stops at the first success accepts too often (2.7% at the bound
instead of 1%). So a `Schedule` fixes before the run at which numbers of requests it is looked, and
the looks share the error.

Latencies in a queue depend on those before, so `n` of them say less than `n` independent ones:
those over the bound come in bursts. `correlation_length` estimates how many requests count as one
where some are over. That none is over only needs the mean size of a burst: if bursts have `s`
requests, none of `n` is over with probability `q ** (n / s)` (Leadbetter, 1983), and
`mean_cluster` estimates `s`.

Sources: MLPerf Inference Rules, "Early stopping" (Reddi et al., 2020); Ferro and Segers, "Inference
for clusters of extreme values" (2003).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

MARKS, MARKED, LIMITS = (0.9, 0.95), 30, (0.9, 0.99)
"""Correlation is estimated from the slowest requests: those above a quantile within the limits, the
highest that `MARKED` are above; bursts also from those above `MARKS`. The assumption is that those
farther out are not correlated over longer times.
"""


def max_over(requests: int, quantile: float, error: float) -> int:
    """Return how many of the requests may be over the bound; -1 if too few were sent.

    Args:
        requests: number of independent requests.
        quantile: share of requests that must be within the bound, such as 0.99.
        error: probability with which a latency at the bound may be accepted.
    """
    found = int(binom.ppf(error, requests, 1 - quantile))
    while found >= 0 and binom.cdf(found, requests, 1 - quantile) > error:
        found -= 1
    return found


def requests_needed(over: int, quantile: float, error: float) -> int:
    """Return the fewest requests of which `over` may be over the bound."""
    low = high = over + 1
    while max_over(high, quantile, error) < over:
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        if max_over(middle, quantile, error) < over:
            low = middle + 1
        else:
            high = middle
    return low


def correlation_length(latencies: NDArray[np.float64]) -> float:
    """Return how many successive requests say as much as one independent request; at least 1.

    It is the integrated autocorrelation time of "among the slowest", summed over pairs of
    lags while the sum of a pair is positive (Geyer, 1992), which no correlation can make too small
    by oscillating.

    Args:
        latencies: float64 `[n]`, seconds, in the order in which the requests were due. A request
            without an answer is infinite.
    """
    if len(latencies) < 2:
        return 1.0
    marked = _is_above(latencies, 1 - MARKED / len(latencies)).astype(np.float64)
    marked -= marked.mean()
    variance = float(marked @ marked)
    if variance == 0:
        return 1.0
    size = 1 << (2 * len(marked) - 1).bit_length()
    spectrum = np.fft.rfft(marked, size)
    correlation = np.fft.irfft(spectrum * spectrum.conj(), size)[: len(marked)] / variance
    pairs = correlation[: len(correlation) // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    kept = pairs[: ends[0]] if len(ends) else pairs
    return max(1.0, 2.0 * float(kept.sum()) - 1.0)


def mean_cluster(latencies: NDArray[np.float64]) -> float:
    """Return the mean size of a burst of slow requests; at least 1.

    It is one over the extremal index, by the intervals estimator of Ferro and Segers: gaps between
    slow requests are short inside a burst, and exponential between bursts. Of what three quantiles
    call slow, the largest bursts count.

    Args:
        latencies: as of `correlation_length`.
    """
    if not len(latencies):
        return 1.0
    marks = (*MARKS, 1 - MARKED / len(latencies))
    return max(_mean_cluster(_is_above(latencies, each)) for each in marks)


def _mean_cluster(is_slow: NDArray[np.bool_]) -> float:
    gaps = np.diff(np.flatnonzero(is_slow)).astype(np.float64)
    if len(gaps) < 2:
        return 1.0
    if gaps.max() > 2:
        squares = float(((gaps - 1) * (gaps - 2)).sum())
        index = 2 * float((gaps - 1).sum()) ** 2 / (len(gaps) * squares)
    else:
        index = 2 * float(gaps.sum()) ** 2 / (len(gaps) * float((gaps**2).sum()))
    return 1 / min(1.0, index)


def _is_above(latencies: NDArray[np.float64], quantile: float) -> NDArray[np.bool_]:
    above: NDArray[np.bool_] = latencies > np.quantile(
        latencies, np.clip(quantile, *LIMITS), method="lower"
    )
    return above


@dataclass(frozen=True)
class Verdict:
    """What the requests up to a look say.

    Attributes:
        requests: number of requests.
        over: how many of them were over the bound.
        correlation: how many of them count as one independent request.
        allowed: how many may be over; -1 if too few were sent for any verdict.
    """

    requests: int
    over: int
    correlation: float
    allowed: int

    @property
    def is_proved(self) -> bool:
        """Whether the bound is proved."""
        return 0 <= self.over <= self.allowed


@dataclass(frozen=True)
class Schedule:
    """After how many requests a run is looked at, fixed before it starts.

    Attributes:
        looks: numbers of requests, ascending.
        quantile: share of requests that must be within the bound.
        confidence: one minus the probability that a latency at the bound is accepted at any look.
    """

    looks: tuple[int, ...]
    quantile: float = 0.99
    confidence: float = 0.99

    @property
    def error_of_a_look(self) -> float:
        """The share of the error that each look may spend."""
        return (1 - self.confidence) / len(self.looks)

    def judge(self, latencies: NDArray[np.float64], bound: float) -> Verdict:
        """Judge the requests of one look.

        Args:
            latencies: float64 `[n]`, seconds from when a request was due to its answer, in that
                order; infinite without an answer.
            bound: seconds.
        """
        many, over = len(latencies), int((latencies > bound).sum())
        length, cluster = correlation_length(latencies), mean_cluster(latencies)
        if (independent := self._allowed(many, length)) >= 0:
            return Verdict(many, over, length, math.floor(independent * length))
        allowed = min(0, self._allowed(many, cluster))
        return Verdict(many, over, min(length, cluster), allowed)

    def _allowed(self, requests: int, count_as_one: float) -> int:
        return max_over(int(requests / count_as_one), self.quantile, self.error_of_a_look)

    def is_hopeless(self, latencies: NDArray[np.float64], bound: float) -> bool:
        """Return whether more are over the bound already than the last look allows."""
        most = max_over(self.looks[-1], self.quantile, self.error_of_a_look)
        return int((latencies > bound).sum()) > most

    def first_verdict(self, latencies: NDArray[np.float64], bound: float) -> Verdict:
        """Return the verdict of the first look that proves the bound, or else of the last one."""
        verdicts = list(self.judge_all(latencies, bound))
        proved = (each for each in verdicts if each.is_proved)
        last = verdicts[-1] if verdicts else self.judge(latencies, bound)
        return next(proved, last)

    def judge_all(self, latencies: NDArray[np.float64], bound: float) -> Iterator[Verdict]:
        """Judge at each look that the latencies reach."""
        for look in self.looks:
            if look <= len(latencies):
                yield self.judge(latencies[:look], bound)


def schedule_for(
    over: Sequence[int] = (2, 8, 24), quantile: float = 0.99, confidence: float = 0.99
) -> Schedule:
    """Return a schedule whose looks allow so many independent requests over the bound each."""
    error = (1 - confidence) / len(over)
    looks = tuple(requests_needed(each, quantile, error) for each in over)
    return Schedule(looks, quantile, confidence)
