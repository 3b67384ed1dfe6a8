from dataclasses import replace
from uuid import uuid4

import pytest

from millrace.flows.deployments.deployment_specs import DeploymentSpec
from millrace.flows.deployments.schedule_plan import Held, HeldSchedule, Make, Unschedule, decide

SPEC = DeploymentSpec(
    "score-a", "flows.score", "what it does", ("millrace", "a"), {"x": 1}, "0 2 * * *", "CET"
)
SCHEDULE = HeldSchedule(uuid4(), "0 2 * * *", "CET", True)
HELD = Held(
    uuid4(), "score-a", "flows.score", "what it does", ("a", "millrace"), {"x": 1}, 1, "ENQUEUE",
    schedules=(SCHEDULE,),
)  # fmt: skip


def test_what_is_as_it_should_be_is_left_alone() -> None:
    assert decide([SPEC], {"score-a": HELD}) == ()


def test_what_is_gone_is_made_and_stays_paused_if_it_was() -> None:
    assert decide([SPEC], {}) == (Make(SPEC, "it was missing"),)
    assert decide([SPEC], {}, paused={"score-a"}) == (Make(SPEC, "it was missing", True),)


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
    (made,) = decide([SPEC], {"score-a": replace(HELD, **change)})
    assert isinstance(made, Make)
    assert made.why == f"it had another {what}"
    assert made.anew is None


def test_what_would_run_foreign_code_is_made_anew() -> None:
    (made,) = decide([SPEC], {"score-a": replace(HELD, foreign=("pull_steps",))})
    assert made == Make(SPEC, "it had foreign pull_steps", False, HELD.id)


def test_a_pause_is_a_wish_and_outlasts_a_change_of_the_file() -> None:
    paused = replace(HELD, schedules=(replace(SCHEDULE, active=False),))
    assert decide([SPEC], {"score-a": paused}) == ()
    (made,) = decide([replace(SPEC, cron="0 3 * * *")], {"score-a": paused})
    assert isinstance(made, Make)
    assert made.paused


def test_a_cron_that_went_away_is_taken_out_of_an_older_home() -> None:
    asked = replace(SPEC, cron=None)
    (made,) = decide([asked], {"score-a": HELD})
    assert made == Make(asked, "it had another schedule")


def test_a_pipeline_that_is_not_scheduled_any_more_loses_its_schedule() -> None:
    assert decide([], {}, [HELD]) == (Unschedule(HELD.id, "score-a", (SCHEDULE.id,)),)
    assert decide([], {}, [replace(HELD, schedules=())]) == ()
