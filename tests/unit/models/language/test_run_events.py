import math

import pytest

from millrace.models.language.run_events import Resumed, RunHistory, StepsDone
from millrace.models.training.progress import EpochEnded, WorkersFailed


def report(step: int, began_at: int = 0, loss: float = 1.0) -> EpochEnded:
    return EpochEnded({"step": step, "loss": loss, "began_at": began_at})


def test_steps_that_are_done_again_take_the_place_of_those_before() -> None:
    history = RunHistory()
    for step in (1, 2, 3):
        history.add(report(step, loss=step))
    assert history.add(WorkersFailed({0: "killed"})) == [WorkersFailed({0: "killed"})]
    told = history.add(report(3, began_at=2, loss=7))
    assert told == [Resumed(2), StepsDone({"step": 3, "loss": 7})]
    assert [(each["step"], each["loss"]) for each in history.reports] == [(1, 1), (2, 2), (3, 7)]
    assert history.recoveries == [2]


def test_reports_beyond_where_it_went_on_are_forgotten() -> None:
    history = RunHistory()
    for step in (2, 4, 6):
        history.add(report(step))
    history.add(WorkersFailed({0: "killed"}))
    history.add(report(3, began_at=2))
    assert [each["step"] for each in history.reports] == [2, 3]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_fault(loss: float) -> None:
    history = RunHistory()
    assert history.fault() is None
    history.add(report(1))
    assert history.fault() is None
    history.add(report(2, loss=loss))
    fault = history.fault()
    assert fault is not None
    assert "after step 2" in fault.what
