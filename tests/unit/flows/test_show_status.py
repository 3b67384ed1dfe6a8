from millrace.flows.cli.show import describe_status
from millrace.flows.deployments.schedule_state import PutBack, Schedule, Schedules
from millrace.flows.deployments.scheduled_files import ScheduleFault
from millrace.flows.services.control import ServiceStatus, Status

MLFLOW = ServiceStatus("mlflow", True, True, "http://127.0.0.1:5000", 1, 1.0, 0, "")


def test_up_says_where_to_look_how_to_log_in_and_what_prefect_has() -> None:
    schedules = Schedules(
        1,
        settled=True,
        schedules=(Schedule("release"), Schedule("score-a", "/a.yaml", "0 2 * * *", paused=True)),
    )
    status = Status(
        True, "/h", services=(MLFLOW,), schedules=schedules, prefect_login="/h h/run/prefect.login"
    )
    said = "\n".join(describe_status(status))
    assert "http://127.0.0.1:5000/#/models?workflowType=machine_learning" in said
    assert "cat '/h h/run/prefect.login'" in said
    assert "scheduled: /a.yaml (score-a 0 2 * * * UTC, paused in Prefect)" in said


def test_status_says_what_is_wrong_with_the_schedules() -> None:
    put_back = PutBack("score-a", "it was missing", "2026-11-22T02:00:00+00:00")
    schedules = Schedules(1, faults=(ScheduleFault("/b.yaml", "gone"),), put_back=(put_back,))
    said = "\n".join(describe_status(Status(True, "/h", schedules=schedules)))
    assert "/b.yaml: gone" in said
    assert "are being restored" in said
    assert "restored: score-a" in said
    assert "no pipeline file" in said


def test_nothing_is_said_of_what_does_not_run() -> None:
    assert list(describe_status(Status(False, "/h"))) == []
