import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from millrace.models.config.rollout_spec import JudgeSpec
from millrace.serving.rollout.judge import (
    TESTS,
    Arm,
    Counts,
    Verdict,
    check_latency,
    count_tests,
    judge,
    lower_bound,
    upper_bound,
)

SPEC = JudgeSpec()
LEVEL = 0.05


def arm(mean: float = 7.0, spread: float = 0.1, blocks: int = 200, failed: int = 0) -> Arm:
    """Return an arm whose blocks lie half above and half below the mean."""
    squares = blocks * (mean**2 + spread**2)
    return Arm(16 * blocks, failed, 1.0, blocks, blocks * mean, squares)


GOOD = Counts(arm(), arm(), compared=3000, agreeing=3000)


GOAL = JudgeSpec(p99_ms=20)


def late(many: int, blocks: int = 200, each: int = 1) -> Arm:
    """Return an arm with so many late answers, of which some come together in one block."""
    return replace(
        arm(blocks=blocks), timed=32 * blocks, late=many, late_squares=float(many * each)
    )


def judged(counts: Counts, *, is_over: bool = True, tests: int = 3 * TESTS) -> Verdict:
    return judge(counts, SPEC, tests=tests, is_over=is_over)


def test_an_equal_candidate_is_promoted_when_the_time_is_over() -> None:
    assert judged(GOOD).kind == "promote"


def test_nothing_is_promoted_before_that() -> None:
    assert judged(GOOD, is_over=False).kind == "continue"


@pytest.mark.parametrize(
    "counts",
    [
        Counts(),
        replace(GOOD, compared=200, agreeing=200),
        replace(GOOD, candidate=replace(arm(), requests=100)),
        replace(GOOD, candidate=arm(blocks=1)),
        replace(GOOD, candidate=arm(mean=7.0 + math.log(1.25), spread=1.0)),
    ],
    ids=["nothing", "few rows", "few requests", "few latencies", "noisy latencies"],
)
def test_too_little_evidence_is_inconclusive_and_says_of_what(counts: Counts) -> None:
    assert judged(counts, is_over=False).kind == "continue"
    verdict = judged(counts)
    assert verdict.kind == "inconclusive"
    assert "not shown" in verdict.reason


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (replace(GOOD, agreeing=2850), "2850 of 3000 rows agree"),
        (replace(GOOD, candidate=arm(mean=7.0 + math.log(2))), "2.00 times the champion's"),
        (replace(GOOD, candidate=arm(failed=100)), "failed 100 of 3200 requests"),
    ],
    ids=["agreement", "latency", "failures"],
)
def test_a_clearly_worse_candidate_goes_back_before_the_time_is_over(
    counts: Counts, said: str, over: bool
) -> None:
    verdict = judged(counts, is_over=over)
    assert verdict.kind == "back"
    assert said in verdict.reason


def test_a_slightly_worse_candidate_is_given_its_time() -> None:
    counts = replace(GOOD, compared=3000, agreeing=2952)
    assert judged(counts, is_over=False).kind == "continue"
    assert judged(counts).kind == "back"


def test_more_steps_ask_for_more_evidence() -> None:
    counts = replace(GOOD, compared=450, agreeing=450)
    assert judged(counts, tests=TESTS).kind == "promote"
    assert judged(counts, tests=3 * TESTS).kind == "inconclusive"


def test_the_bounds_of_a_share_are_those_of_scipy() -> None:
    for hits, of in ((0, 10), (3, 10), (10, 10), (990, 1000)):
        below = stats.binomtest(hits, of, alternative="greater").proportion_ci(1 - LEVEL, "exact")
        above = stats.binomtest(hits, of, alternative="less").proportion_ci(1 - LEVEL, "exact")
        assert lower_bound(hits, of, LEVEL) == pytest.approx(below.low)
        assert upper_bound(hits, of, LEVEL) == pytest.approx(above.high)


def test_nothing_counted_bounds_nothing() -> None:
    assert (lower_bound(0, 0, LEVEL), upper_bound(0, 0, LEVEL)) == (0.0, 1.0)


def test_the_latency_test_is_the_welch_test_of_scipy() -> None:
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal(7.0, 0.3, 40), generator.normal(7.1, 0.5, 25)

    def told(blocks: np.ndarray) -> Arm:
        return Arm(0, 0, 0, len(blocks), float(blocks.sum()), float((blocks**2).sum()))

    p = stats.ttest_ind(theirs - math.log(1.2), ours, equal_var=False, alternative="less").pvalue
    for level, within in ((p * 1.01, True), (p * 0.99, False)):
        finding = check_latency(Counts(told(ours), told(theirs)), 1.2, level, level)
        assert finding.is_within is within


def test_equal_latencies_without_any_spread_are_within_the_limit() -> None:
    same = Arm(0, 0, 0, 3, 21.0, 147.0)
    assert check_latency(Counts(same, same), 1.2, LEVEL, LEVEL).is_within


def test_counts_of_replicas_add_up() -> None:
    both = GOOD + GOOD
    assert (both.compared, both.candidate.requests, both.champion.blocks) == (6000, 6400, 400)


@pytest.mark.parametrize(
    ("champion", "candidate", "kind"),
    [
        (late(0), late(20), "promote"),
        (late(0), late(62), "inconclusive"),
        (late(0), late(160), "back"),
        (late(0), late(160, each=16), "inconclusive"),
        (late(900), late(160), "promote"),
        (late(900), late(1900), "back"),
        (arm(), arm(), "inconclusive"),
    ],
    ids=["within", "at it", "beyond", "in bursts", "so is the champion", "worse", "not measured"],
)
def test_a_candidate_is_held_to_the_latency_goal(champion: Arm, candidate: Arm, kind: str) -> None:
    counts = replace(GOOD, champion=champion, candidate=candidate)
    verdict = judge(counts, GOAL, tests=3 * count_tests(GOAL), is_over=True)
    assert verdict.kind == kind, verdict.reason
    if kind == "back":
        assert "answers took longer than 20 ms" in verdict.reason
    assert judged(counts).kind == "promote"  # without a goal


@pytest.mark.parametrize("seed", range(3))
def test_late_answers_that_come_together_count_as_fewer(seed: int) -> None:
    """The variance of the share tells how many independent answers say as much."""
    drawn = np.random.default_rng(seed)
    bursts = drawn.random(20_000) < 0.005
    blocks = np.repeat(bursts, 8).reshape(-1, 32).sum(axis=1)  # eight late ones at a time
    found = Arm(
        blocks=len(blocks),
        timed=blocks.size * 32,
        late=int(blocks.sum()),
        late_squares=float((blocks**2).sum()),
    )
    hits, answers = found.independent_late
    assert hits == pytest.approx(bursts.sum(), rel=0.3)
    assert hits / answers == pytest.approx(0.005, rel=0.3)
