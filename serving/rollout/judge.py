"""Decide by statistical tests over counts whether a candidate may get more traffic.

A candidate advances when tests show that it is within the limits of `rollout.judge`: the share of
failed requests, the share of rows that both versions answer alike, latency beside the champion's,
and, where there is a latency goal, the share of answers that are later. The null hypothesis is
always "the candidate is worse than the limit", so too few requests prove nothing.

The level is the largest probability that a rollout promotes a candidate that is worse than a limit.
It is divided among all tests of all steps (Bonferroni). The judge looks at the counts of a step
many times, but a step can only be promoted at one look: when its time is over. A promotion needs
every test of every step, so a less strict level would suffice for a candidate that is equally bad
in all steps. The divided level also covers a candidate that is bad in a single step.

A step also ends early when the opposite tests show that the candidate is worse than a limit. For
these tests the level is divided by `LOOKS` as well, because they run at every look. So the
probability that any look sends back a candidate within the limits is also below the level.
"""

import math
from dataclasses import dataclass
from typing import Literal

from millrace.models.config.rollout_spec import JudgeSpec

TESTS = 3
"""Tests of a step: failures, agreement, latency. A latency goal adds one."""
MOST_LATE = 0.01
"""Largest share of answers later than a goal for the p99."""
LOOKS = 1000
"""Number of looks at a step that the level allows for: 80 minutes at one look per 5 s."""


@dataclass(frozen=True)
class Arm:
    """The counts of one version.

    Attributes:
        requests: requests that the version had to answer.
        failures: requests that the version failed; for a candidate, only those that the champion
            answered.
        seconds: sum of the latencies of its answers, in seconds.
        blocks: number of blocks of successive latencies; each block is one observation.
        log_latency: sum over the blocks of each block's mean ln(latency). The unit of the latency
            cancels in the ratio.
        log_latency_squares: sum over the blocks of the square of each block's mean ln(latency).
        timed: answers in the blocks.
        late: those of them that were later than the goal.
        late_squares: sum over the blocks of the square of each block's late answers.
    """

    requests: int = 0
    failures: int = 0
    seconds: float = 0.0
    blocks: int = 0
    log_latency: float = 0.0
    log_latency_squares: float = 0.0
    timed: int = 0
    late: int = 0
    late_squares: float = 0.0

    def __add__(self, other: "Arm") -> "Arm":
        return Arm(
            self.requests + other.requests,
            self.failures + other.failures,
            self.seconds + other.seconds,
            self.blocks + other.blocks,
            self.log_latency + other.log_latency,
            self.log_latency_squares + other.log_latency_squares,
            self.timed + other.timed,
            self.late + other.late,
            self.late_squares + other.late_squares,
        )

    @property
    def mean(self) -> float:
        """The mean of ln(latency) over the blocks."""
        return self.log_latency / self.blocks

    @property
    def variance_of_mean(self) -> float:
        """The variance of `mean`, estimated from the spread of the blocks."""
        spread = self.log_latency_squares - self.blocks * self.mean**2
        return max(spread, 0.0) / (self.blocks - 1) / self.blocks

    @property
    def independent_late(self) -> tuple[float, float]:
        """Late answers and answers, as many as independent ones would say as much.

        Late answers come together. The variance of a block's late answers, divided by the one that
        independent answers would have, says of how many each is one (the design effect; Kish,
        Survey Sampling, 1965).
        """
        if self.blocks < 2 or not 0 < self.late < self.timed:
            return self.late, self.timed
        mean, share = self.late / self.blocks, self.late / self.timed
        variance = (self.late_squares - self.blocks * mean**2) / (self.blocks - 1)
        effect = max(1.0, variance / (mean * (1 - share)))
        return self.late / effect, self.timed / effect


@dataclass(frozen=True)
class Counts:
    """The counts of a step.

    Attributes:
        champion: the version that serves.
        candidate: the version on trial.
        compared: rows that both versions answered.
        agreeing: rows that both versions answered alike.
        shed: calls to the candidate that were dropped because too many were in flight.
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
        kind: promote: the candidate is within all limits. back: it is worse than a limit. continue:
            not decided yet. inconclusive: not decided when the step's time is over.
        reason: the findings of the tests, in words.
    """

    kind: Literal["promote", "back", "continue", "inconclusive"]
    reason: str


@dataclass(frozen=True)
class Finding:
    """The result of one test.

    Attributes:
        is_within: whether the candidate was shown to be within the limit.
        is_beyond: whether the candidate was shown to be worse than the limit.
        text: the numbers, in words.
    """

    is_within: bool
    is_beyond: bool
    text: str


def judge(counts: Counts, spec: JudgeSpec, *, tests: int, is_over: bool) -> Verdict:
    """Return the verdict on the counts of a step.

    Args:
        counts: the counts of this step alone.
        spec: the limits and the level.
        tests: number of tests in the whole rollout, `count_tests` for each step.
        is_over: whether the step's time is over. Only then can the verdict be a promotion, and
            only the first verdict after that time counts.
    """
    promote_level = spec.level / tests
    reject_level = promote_level if is_over else promote_level / LOOKS
    findings = [
        check_failures(counts, spec.max_failures, promote_level, reject_level),
        check_agreement(counts, spec.min_agreement, promote_level, reject_level),
        check_latency(counts, spec.max_slowdown, promote_level, reject_level),
    ]
    if spec.p99_ms is not None:
        findings.append(check_goal(counts, spec.p99_ms, promote_level, reject_level))
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
        counts: the counts of a step.
        limit: the largest share allowed.
        promote_level: probability of wrongly finding that the candidate is within the limit.
        reject_level: probability of wrongly finding that the candidate is beyond the limit.
    """
    failed, requests = counts.candidate.failures, counts.candidate.requests
    text = f"the candidate failed {failed} of {requests} requests"
    return _check_share(text, (failed, requests), limit, promote_level, reject_level)


def check_agreement(
    counts: Counts, limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test the share of rows that both versions answer alike; the smallest allowed is `limit`."""
    alike, rows = counts.agreeing, counts.compared
    least, most = lower_bound(alike, rows, promote_level), upper_bound(alike, rows, reject_level)
    text = (
        f"{alike} of {rows} rows agree, which shows a share of at least {least:.2%}; "
        f"required is {limit:.2%}"
    )
    return Finding(least >= limit, most < limit, text)


def check_latency(
    counts: Counts, limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test the ratio of geometric mean latencies, the candidate's divided by the champion's.

    Uses Welch's t-test of ln(latency), as one-sided tests against ln(limit) (Wellek, Testing
    Statistical Hypotheses of Equivalence and Noninferiority, chapter 6; Welch 1947).
    """
    from scipy import special

    champion, candidate = counts.champion, counts.candidate
    if min(champion.blocks, candidate.blocks) < 2:
        return Finding(False, False, "too few latencies were measured to compare the versions")
    difference = candidate.mean - champion.mean
    error, freedom = _welch(champion, candidate)
    most = difference + float(special.stdtrit(freedom, 1 - promote_level)) * error
    least = difference - float(special.stdtrit(freedom, 1 - reject_level)) * error
    text = (
        f"the candidate's latency is {math.exp(difference):.2f} times the champion's, "
        f"which shows at most {math.exp(min(most, 99)):.2f} times; allowed is {limit:.2f}"
    )
    return Finding(most <= math.log(limit), least > math.log(limit), text)


def check_goal(
    counts: Counts, bound_ms: float, promote_level: float, reject_level: float
) -> Finding:
    """Test the share of the candidate's answers that are later than the goal for the p99.

    Where the champion too is shown to miss the goal, the load or the machine is at fault: then the
    champion's share is allowed.
    """
    candidate = counts.candidate
    limit = max(MOST_LATE, lower_bound(*counts.champion.independent_late, promote_level))
    text = (
        f"{candidate.late} of the candidate's {candidate.timed} answers took longer than "
        f"{bound_ms:g} ms"
    )
    return _check_share(text, candidate.independent_late, limit, promote_level, reject_level)


def _check_share(
    text: str, share: tuple[float, float], limit: float, promote_level: float, reject_level: float
) -> Finding:
    """Test a share, as hits and the number of all, that may be at most a limit."""
    most, least = upper_bound(*share, promote_level), lower_bound(*share, reject_level)
    shown = f"{text}, which shows a share of at most {most:.2%}; allowed is {limit:.2%}"
    return Finding(most <= limit, least > limit, shown)


def count_tests(spec: JudgeSpec) -> int:
    """Return the number of tests of a step."""
    return TESTS + (spec.p99_ms is not None)


def lower_bound(hits: float, of: float, level: float) -> float:
    """Return the one-sided lower confidence bound of `hits / of` (Clopper and Pearson 1934)."""
    from scipy import special  # 30 MB, which a home without rollouts never needs

    return float(special.betaincinv(hits, of - hits + 1, level)) if hits else 0.0


def upper_bound(hits: float, of: float, level: float) -> float:
    """Return the one-sided upper confidence bound of `hits / of` (Clopper and Pearson 1934)."""
    from scipy import special

    return float(special.betaincinv(hits + 1, of - hits, 1 - level)) if hits < of else 1.0


def _welch(champion: Arm, candidate: Arm) -> tuple[float, float]:
    """Return the standard error of the difference of both means, and its degrees of freedom."""
    a, b = champion.variance_of_mean, candidate.variance_of_mean
    if a + b == 0:
        return 0.0, 1.0
    freedom = (a + b) ** 2 / (a**2 / (champion.blocks - 1) + b**2 / (candidate.blocks - 1))
    return math.sqrt(a + b), freedom
