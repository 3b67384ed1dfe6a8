from dataclasses import replace
from uuid import uuid4

import pytest

from millrace.flows.deployments.deployment_specs import (
    DeploymentSpec,
    ExistingDeployment,
    ExistingSchedule,
    RegisterDeployment,
    RemoveSchedules,
    plan_changes,
)

SPEC = DeploymentSpec(
    "score-a", "flows.score", "what it does", ("millrace", "a"), {"x": 1}, "0 2 * * *", "CET"
)
SCHEDULE = ExistingSchedule(uuid4(), "0 2 * * *", "CET", True)
EXISTING = ExistingDeployment(
    uuid4(), "score-a", "flows.score", "what it does", ("a", "millrace"), {"x": 1}, 1, "ENQUEUE",
    schedules=(SCHEDULE,),
)  # fmt: skip


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert plan_changes([SPEC], {"score-a": EXISTING}) == ()


def test_what_is_gone_is_made_and_stays_paused_if_it_was() -> None:
    assert plan_changes([SPEC], {}) == (RegisterDeployment(SPEC, "it was missing"),)
    assert plan_changes([SPEC], {}, paused={"score-a"}) == (
        RegisterDeployment(SPEC, "it was missing", True),
    )


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"entrypoint": "evil.flow"}, "entrypoint"),
        ({"parameters": {"x": 2}}, "parameters"),
        ({"tags": ("millrace",)}, "tags"),
        ({"limit": None}, "limit"),
        ({"schedules": ()}, "schedule"),
        ({"schedules": (replace(SCHEDULE, cron="* * * * *"),)}, "schedule"),
        ({"schedules": (SCHEDULE, SCHEDULE)}, "schedule"),
    ],
)
def test_what_somebody_changed_is_put_back(change: dict[str, object], what: str) -> None:
    (made,) = plan_changes([SPEC], {"score-a": replace(EXISTING, **change)})
    assert isinstance(made, RegisterDeployment)
    assert made.reason == f"it had a different {what}"
    assert made.replaces is None


def test_what_would_run_foreign_code_is_made_anew() -> None:
    (made,) = plan_changes([SPEC], {"score-a": replace(EXISTING, foreign=("pull_steps",))})
    reason = "it had fields that Millrace never sets: pull_steps"
    assert made == RegisterDeployment(SPEC, reason, False, EXISTING.id)


def test_a_pause_is_a_wish_and_outlasts_a_change_of_the_file() -> None:
    paused = replace(EXISTING, schedules=(replace(SCHEDULE, is_active=False),))
    assert plan_changes([SPEC], {"score-a": paused}) == ()
    (made,) = plan_changes([replace(SPEC, cron="0 3 * * *")], {"score-a": paused})
    assert isinstance(made, RegisterDeployment)
    assert made.is_paused


def test_a_cron_that_went_away_is_taken_out_of_an_older_home() -> None:
    asked = replace(SPEC, cron=None)
    (made,) = plan_changes([asked], {"score-a": EXISTING})
    assert made == RegisterDeployment(asked, "it had a different schedule")


def test_a_pipeline_that_is_not_scheduled_any_more_loses_its_schedule() -> None:
    assert plan_changes([], {}, [EXISTING]) == (RemoveSchedules(EXISTING),)
    assert plan_changes([], {}, [replace(EXISTING, schedules=())]) == ()
