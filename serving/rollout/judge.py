"""Whether a candidate may have more traffic: statistical tests over plain counts.

A candidate goes on when three tests show that it is within the limits of `judge`: failures, rows
that both versions answer alike, and latency. Showing is what it takes: the hypothesis that is to be
rejected is always "it is worse than the limit", so few requests show nothing.

The level is the largest probability that a rollout promotes a candidate that is worse than a limit.
It is shared out over all tests of all steps (Bonferroni), and every step is looked at once with a
promotion as a possible outcome: when its time is over. As a promotion needs every test of every
step, less would do for a candidate that is equally bad in all of them; so much also covers one that
is bad in one step only, whichever that is.

A step also ends early, by tests the other way round, when the candidate is surely worse than a
limit. That level is shared out once more over `LOOKS`, so that a candidate within the limits is
sent back by one of so many looks with a probability below the level too.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special

from millrace.models.config.rollout_spec import JudgeSpec

TESTS = 3
"""Tests of a step: failures, agreement, latency."""
LOOKS = 1000
"""Looks at a step before its time is over for which the level holds: 80 minutes of one in 5 s."""


@dataclass(frozen=True)
class Arm:
    """What was counted of one version.

    Attributes:
        requests: requests that it had to answer.
        failures: those that it failed; a candidate's only where the champion answered.
        seconds: time of its answers, summed.
        blocks: blocks of successive latencies, each of them one observation.
        log_latency: means of ln(latency) in the blocks, summed; the unit cancels out.
        log_latency_squares: the squares of those means, summed.
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
        """Variance of the mean, from the spread of the blocks."""
        spread = self.log_latency_squares - self.blocks * self.mean**2
        return max(spread, 0.0) / (self.blocks - 1) / self.blocks


@dataclass(frozen=True)
class Counts:
    """What was counted in a step.

    Attributes:
        champion: the version that serves.
        candidate: the version on trial.
        compared: rows that both answered.
        agreeing: rows that both answered alike.
        shed: calls of the candidate that were not made because too many were under way.
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
    """What the counts say.

    Attributes:
        kind: promote: within all limits. back: surely worse than one. continue: not known yet.
            inconclusive: not known, and the time is over.
        reason: what each test found.
    """

    kind: Literal["promote", "back", "continue", "inconclusive"]
    reason: str


@dataclass(frozen=True)
class Finding:
    """What one test found.

    Attributes:
        within: whether the candidate was shown to be within the limit.
        beyond: whether it was shown to be worse.
        said: the numbers, for people.
    """

    within: bool
    beyond: bool
    said: str


def judge(counts: Counts, spec: JudgeSpec, *, tests: int, over: bool) -> Verdict:
    """Return what the counts of a step say.

    Args:
        counts: of this step alone.
        spec: the limits and the level.
        tests: tests in the whole rollout, `TESTS` for each step.
        over: whether the time of the step is over; a promotion is possible only then, and only
            the first such verdict counts.
    """
    within = spec.level / tests
    beyond = within if over else within / LOOKS
    findings = (
        failures(counts, spec.max_failures, within, beyond),
        agreement(counts, spec.min_agreement, within, beyond),
        latency(counts, spec.max_slowdown, within, beyond),
    )
    if worse := [finding.said for finding in findings if finding.beyond]:
        return Verdict("back", "; ".join(worse))
    said = "; ".join(finding.said for finding in findings)
    if not over:
        return Verdict("continue", said)
    if all(finding.within for finding in findings):
        return Verdict("promote", said)
    missing = "; ".join(finding.said for finding in findings if not finding.within)
    return Verdict("inconclusive", f"not shown to be within the limits: {missing}")


def failures(counts: Counts, limit: float, within: float, beyond: float) -> Finding:
    """Test the share of requests that the candidate failed and the champion answered.

    Args:
        counts: of a step.
        limit: the largest share allowed.
        within: probability of showing wrongly that the candidate is within the limit.
        beyond: probability of showing wrongly that it is beyond it.
    """
    failed, requests = counts.candidate.failures, counts.candidate.requests
    most, least = upper_bound(failed, requests, within), lower_bound(failed, requests, beyond)
    said = f"it failed {failed} of {requests} requests: at most {most:.2%}, allowed are {limit:.2%}"
    return Finding(most <= limit, least > limit, said)


def agreement(counts: Counts, limit: float, within: float, beyond: float) -> Finding:
    """Test the share of rows that both versions answered alike; the limit is the smallest."""
    alike, rows = counts.agreeing, counts.compared
    least, most = lower_bound(alike, rows, within), upper_bound(alike, rows, beyond)
    said = f"{alike} of {rows} rows agree: at least {least:.2%}, required are {limit:.2%}"
    return Finding(least >= limit, most < limit, said)


def latency(counts: Counts, limit: float, within: float, beyond: float) -> Finding:
    """Test the ratio of the geometric means of latency, the candidate's over the champion's.

    Welch's t-test of ln(latency), as one-sided tests against ln(limit) (Wellek, Testing
    Statistical Hypotheses of Equivalence and Noninferiority, chapter 6; Welch 1947).
    """
    ours, theirs = counts.champion, counts.candidate
    if min(ours.blocks, theirs.blocks) < 2:
        return Finding(False, False, "too few latencies to compare")
    difference = theirs.mean - ours.mean
    error, freedom = _welch(ours, theirs)
    most = difference + float(special.stdtrit(freedom, 1 - within)) * error
    least = difference - float(special.stdtrit(freedom, 1 - beyond)) * error
    said = (
        f"its latency is {math.exp(difference):.2f} times the champion's: "
        f"at most {math.exp(min(most, 99)):.2f}, allowed is {limit:.2f}"
    )
    return Finding(most <= math.log(limit), least > math.log(limit), said)


def lower_bound(hits: int, of: int, level: float) -> float:
    """Return the one-sided lower bound of a share (Clopper and Pearson 1934)."""
    return float(special.betaincinv(hits, of - hits + 1, level)) if hits else 0.0


def upper_bound(hits: int, of: int, level: float) -> float:
    """Return the one-sided upper bound of a share (Clopper and Pearson 1934)."""
    return float(special.betaincinv(hits + 1, of - hits, 1 - level)) if hits < of else 1.0


def _welch(ours: Arm, theirs: Arm) -> tuple[float, float]:
    """Return the standard error of a difference of means, and its degrees of freedom."""
    a, b = ours.variance_of_mean, theirs.variance_of_mean
    if a + b == 0:
        return 0.0, 1.0
    freedom = (a + b) ** 2 / (a**2 / (ours.blocks - 1) + b**2 / (theirs.blocks - 1))
    return math.sqrt(a + b), freedom
