import pytest

from millrace.models.config.rollout_spec import JudgeSpec, RolloutSpec
from millrace.serving.rollout.judge import TESTS, Arm, Counts, check_agreement, check_failures
from millrace.serving.rollout.rollout import describe_traffic, min_model_requests, min_requests

CANARY = RolloutSpec(kind="canary")


def _within(spec: JudgeSpec, tests: int, answered: int, compared: int) -> tuple[bool, bool]:
    """Ask the judge about a candidate without a fault."""
    counts = Counts(candidate=Arm(requests=answered), compared=compared, agreeing=compared)
    level = spec.level / tests
    return (
        check_failures(counts, spec.max_failures, level, level).is_within,
        check_agreement(counts, spec.min_agreement, level, level).is_within,
    )


@pytest.mark.parametrize("tests", [TESTS, 3 * TESTS, 10 * TESTS])
@pytest.mark.parametrize(
    "spec",
    [
        JudgeSpec(),
        JudgeSpec(level=0.2, max_failures=0.5, min_agreement=0.5),
        JudgeSpec(level=0.001, max_failures=0.001, min_agreement=0.9995),
    ],
)
def test_so_much_is_enough_for_the_judge_and_one_less_is_not(spec: JudgeSpec, tests: int) -> None:
    answered, compared = min_requests(spec, tests)
    assert _within(spec, tests, answered, compared) == (True, True)
    assert _within(spec, tests, answered - 1, compared - 1) == (False, False)


def test_without_a_limit_nothing_must_be_compared() -> None:
    spec = JudgeSpec(min_agreement=0.0)
    assert min_requests(spec, TESTS)[1] == 0
    assert _within(spec, TESTS, 1000, 0) == (True, True)


def test_a_small_share_and_few_comparisons_want_more_traffic() -> None:
    assert min_requests(CANARY.judge, 9) == (517, 517)
    assert min_model_requests(CANARY) == (51_700, 5_170, 5_170)
    assert min_model_requests(RolloutSpec(kind="shadow")) == (408,)
    assert min_model_requests(RolloutSpec()) == ()


def test_a_goal_adds_a_test_and_has_a_limit_of_its_own() -> None:
    shadow = RolloutSpec(kind="shadow", judge=JudgeSpec(max_failures=0.1, min_agreement=0.9))
    assert min_model_requests(shadow) == (39,)
    assert min_model_requests(shadow.with_goal(20.0)) == (437,)
    assert min_model_requests(shadow.with_goal(None)) == (39,)


def test_a_goal_of_its_own_comes_before_that_of_the_pipeline_file() -> None:
    own = RolloutSpec(judge=JudgeSpec(p99_ms=5))
    assert own.with_goal(20.0) == own
    assert RolloutSpec().with_goal(20.0).judge.p99_ms == 20.0


def test_it_is_told_by_step() -> None:
    said = describe_traffic(CANARY)
    assert "51,700 requests at 1 % (86.2/s), 5,170 requests at 10 % (8.6/s)" in said
    assert "at least 408 requests (0.7/s);" in describe_traffic(RolloutSpec(kind="shadow"))
