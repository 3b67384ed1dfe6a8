"""Which profile of a version stays stored."""

import pytest

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.record import ServingProfile
from millrace.serving.profile.stored_profile import is_replaced, other_goal
from tests.unit.serving.profile.test_record import GOAL, profile, proof

HARDER = GOAL.model_copy(update={"rate": 2 * GOAL.rate})
EASIER = GOAL.model_copy(update={"p99_ms": 2 * (GOAL.p99_ms or 0)})


def met(goal: SloSpec = GOAL, **values: object) -> ServingProfile:
    return profile(goal, rate=goal.rate, **values)


def missed(goal: SloSpec = GOAL, **values: object) -> ServingProfile:
    return profile(goal, proof(over=99), rate=goal.rate, **values)


@pytest.mark.parametrize(
    ("earlier", "new", "own", "replaced"),
    [
        (None, missed(), GOAL, True),
        (missed(), missed(HARDER), GOAL, True),
        (missed(), met(EASIER), GOAL, True),
        (met(), met(), GOAL, True),
        (met(), missed(), GOAL, True),  # it does not hold any more
        (met(), missed(HARDER), GOAL, False),
        (met(), missed(HARDER), None, False),
        (met(), met(EASIER), GOAL, False),
        (met(EASIER), met(), GOAL, True),
        (met(EASIER), met(), None, True),
        (met(machine_kind="cpu y"), missed(), GOAL, False),  # it may hold there
        (met(machine_kind="cpu y"), met(), GOAL, True),
        (met(engine="triton 0"), met(EASIER), GOAL, True),
    ],
)
def test_a_trial_of_another_goal_does_not_take_a_proof_away(
    earlier: ServingProfile | None, new: ServingProfile, own: SloSpec | None, replaced: bool
) -> None:
    assert is_replaced(earlier, new, own) is replaced


def test_a_proof_of_an_easier_goal_than_the_versions_own_says_so() -> None:
    assert other_goal(met(EASIER), GOAL).endswith("another goal: p99_ms 20, not 10")
    assert [other_goal(met(), GOAL), other_goal(met(EASIER), None), other_goal(missed(), GOAL)] == [
        ""
    ] * 3
