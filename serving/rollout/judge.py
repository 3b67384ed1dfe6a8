"""Decide by statistical tests over counts whether a candidate may get more traffic.

A candidate goes on when three tests show that it is within the limits of `judge`: failures, rows
that both versions answer alike, and latency. The null hypothesis is always "it is worse than the
limit", so that few requests show nothing.

The level is the largest probability that a rollout promotes a candidate that is worse than a limit.
It is divided among all tests of all steps (Bonferroni), and a step can be promoted at one look
only: when its time is over. A promotion needs every test of every step, so a less strict level
would suffice for a candidate that is equally bad in all steps; this level also covers one that is
bad in a single step.

A step also ends early, by the opposite tests, when the candidate is shown to be worse than a limit.
That level is divided once more by `LOOKS`, so that the probability that any of these looks sends
back a candidate within the limits is below the level too.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special

from millrace.models.config.rollout_spec import JudgeSpec

TESTS = 3
"""Tests of a step: failures, agreement, latency."""
LOOKS = 1000
"""Looks at a step before its end for which the level holds: 80 minutes at one in 5 s."""


@dataclass(frozen=True)
class Arm:
    """The counts of one version.

    Attributes:
        requests: requests that it had to answer.
        failures: requests that it failed; a candidate's only if the champion answered them.
        seconds: sum of the times of its answers.
        blocks: blocks of successive latencies, each of them one observation.
        log_latency: sum over the blocks of the mean of ln(latency); the unit cancels out.
        log_latency_squares: sum of the squares of those means.
    """

    requests: int = 0
    failures: int = 0
    seconds: float = 0.0
    blocks: int = 0
    log_latency: float = 0.0
    log_latency_squares: float = 0.0

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(
            self.requests + other.requests,
            self.failures + other.failures,
            self.seconds + other.seconds,
            self.blocks + other.blocks,
            self.log_latency + other.log_latency,
            self.log_latency_squares + other.log_latency_squares,
        )

    @property
    def mean(self) -> float:
        """Mean of ln(latency)."""
        return self.log_latency / self.blocks

    @property
    def variance_of_mean(self) -> float:
        """Variance of the mean, from the variance of the blocks."""
        spread = self.log_latency_squares - self.blocks * self.mean**2
        return max(spread, 0.0) / (self.blocks - 1) / self.blocks


@dataclass(frozen=True)
class Counts:
    """The counts of a step.

    Attributes:
        champion: the version that serves.
        candidate: the version on trial.
        compared: rows that both answered.
        agreeing: rows that both answered alike.
        shed: calls of the candidate that were dropped because too many were in flight.
    """

    champion: Arm = Arm()
    candidate: Arm = Arm()
    compared: int = 0
    agreeing: int = 0
    shed: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.champion + other.champion,
            self.candidate + other.candidate,
            self.compared + other.compared,
            self.agreeing + other.agreeing,
            self.shed + other.shed,
        )


@dataclass(frozen=True)
class Verdict:
    """The judge's verdict on a step.

    Attributes:
        kind: promote: within all limits. back: shown to be worse than one. continue: not known yet.
            inconclusive: not known, and the time is over.
        reason: the findings of the tests, in words.
    """

    kind: Literal["promote", "back", "continue", "inconclusive"]
    reason: str


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    Attributes:
        is_within: whether the candidate was shown to be within the limit.
        is_beyond: whether it was shown to be worse.
        text: the numbers, in words.
    """

    is_within: bool
    is_beyond: bool
    text: str


def judge(counts: Counts, spec: JudgeSpec, *, tests: int, is_over: bool) -> Verdict:
    """Return the verdict on the counts of a step.

    Args:
        counts: of this step alone.
        spec: the limits and the level.
        tests: tests in the whole rollout, `TESTS` for each step.
        is_over: whether the time of the step is over; a promotion is possible only then, and only
            the first such verdict counts.
    """
    promote_level = spec.level / tests
    reject_level = promote_level if is_over else promote_level / LOOKS
    findings = (
        check_failures(counts, spec.max_failures, promote_level, reject_level),
        check_agreement(counts, spec.min_agreement, promote_level, reject_level),
        check_latency(counts, spec.max_slowdown, promote_level, reject_level),
    )
    if worse := [finding.text for finding in findings if finding.is_beyond]:
        return Verdict("back", "; ".join(worse))
    text = "; ".join(finding.text for finding in findings)
    if not is_over:
        return Verdict("continue", text)
    if all(finding.is_within for finding in findings):
        return Verdict("promote", text)
    missing = "; ".join(finding.text for finding in findings if not finding.is_within)
    return Verdict("inconclusive", f"not shown to be within the limits: {missing}")


def check_failures(
    counts: Counts, limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test the share of requests that the candidate failed and the champion answered.

    Args:
        counts: of a step.
        limit: the largest share allowed.
        promote_level: probability of showing wrongly that the candidate is within the limit.
        reject_level: probability of showing wrongly that it is beyond it.
    """
    failed, requests = counts.candidate.failures, counts.candidate.requests
    most = upper_bound(failed, requests, promote_level)
    least = lower_bound(failed, requests, reject_level)
    text = f"it failed {failed} of {requests} requests: at most {most:.2%}, allowed are {limit:.2%}"
    return Finding(most <= limit, least > limit, text)


def check_agreement(
    counts: Counts, limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test whether both versions answer enough rows alike; `limit` is the smallest share."""
    alike, rows = counts.agreeing, counts.compared
    least, most = lower_bound(alike, rows, promote_level), upper_bound(alike, rows, reject_level)
    text = f"{alike} of {rows} rows agree: at least {least:.2%}, required are {limit:.2%}"
    return Finding(least >= limit, most < limit, text)


def check_latency(
    counts: Counts, limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test the ratio of the geometric means of latency, the candidate's over the champion's.

    Welch's t-test of ln(latency), as one-sided tests against ln(limit) (Wellek, Testing
    Statistical Hypotheses of Equivalence and Noninferiority, chapter 6; Welch 1947).
    """
    champion, candidate = counts.champion, counts.candidate
    if min(champion.blocks, candidate.blocks) < 2:
        return Finding(False, False, "too few latencies to compare")
    difference = candidate.mean - champion.mean
    error, freedom = _welch(champion, candidate)
    most = difference + float(special.stdtrit(freedom, 1 - promote_level)) * error
    least = difference - float(special.stdtrit(freedom, 1 - reject_level)) * error
    text = (
        f"its latency is {math.exp(difference):.2f} times the champion's: "
        f"at most {math.exp(min(most, 99)):.2f}, allowed is {limit:.2f}"
    )
    return Finding(most <= math.log(limit), least > math.log(limit), text)


def lower_bound(hits: int, of: int, level: float) -> float:
    """Return the one-sided lower bound of a share (Clopper and Pearson 1934)."""
    return float(special.betaincinv(hits, of - hits + 1, level)) if hits else 0.0


def upper_bound(hits: int, of: int, level: float) -> float:
    """Return the one-sided upper bound of a share (Clopper and Pearson 1934)."""
    return float(special.betaincinv(hits + 1, of - hits, 1 - level)) if hits < of else 1.0


def _welch(champion: Arm, candidate: Arm) -> tuple[float, float]:
    """Return the standard error of a difference of means, and its degrees of freedom."""
    a, b = champion.variance_of_mean, candidate.variance_of_mean
    if a + b == 0:
        return 0.0, 1.0
    freedom = (a + b) ** 2 / (a**2 / (champion.blocks - 1) + b**2 / (candidate.blocks - 1))
    return math.sqrt(a + b), freedom
