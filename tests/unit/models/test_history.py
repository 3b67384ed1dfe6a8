"""What happened in a training run, from its events, whatever counts its progress."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.language.decoder_loop import LanguageJob
from millrace.models.training.event_log import Reported, Resumed, TrainEvent, WorkersFailed
from millrace.models.training.network_job import NetworkJob
from millrace.models.training.train_job import TrainJob
from millrace.models.training.trainer import History, failure_of

FAILED = WorkersFailed({1: "OSError: gone"})


class Run:
    """The history of one job, and what it reports."""

    def __init__(self, job: type[TrainJob]) -> None:
        self.unit, self.loss, self.advice = job.unit, job.loss, job.advice
        known: Any = SimpleNamespace(unit=job.unit, loss=job.loss, advice=job.advice)
        self.history = History(known)

    def report(self, done: int, loss: float = 0.5, began_at: int | None = None) -> Reported:
        metrics = {self.unit: done, self.loss: loss}
        return Reported(metrics if began_at is None else {**metrics, "began_at": began_at})

    def told(self, *events: TrainEvent) -> list[TrainEvent]:
        return [known for event in events for known in self.history.add(event)]

    @property
    def reports(self) -> list[tuple[int, float]]:
        return [(each[self.unit], each[self.loss]) for each in self.history.reports]


@pytest.fixture(params=[NetworkJob, LanguageJob], ids=["epochs", "steps"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(request.param)


def test_a_run_without_failures_has_its_reports_and_no_recoveries(run: Run) -> None:
    assert run.told(run.report(1, began_at=0), run.report(2)) == [run.report(1), run.report(2)]
    assert [done for done, _ in run.reports] == [1, 2]
    assert run.history.recoveries == []


@pytest.mark.parametrize("done", [0, 2])
def test_training_that_resumed_is_told_with_what_was_done(run: Run, done: int) -> None:
    before = [run.report(each) for each in range(1, done + 1)]
    after = run.report(done + 1)
    found = run.told(*before, FAILED, run.report(done + 1, began_at=done))
    assert found == [*before, FAILED, Resumed(done), after]
    assert run.history.recoveries == [done]


def test_where_it_resumed_is_where_its_worker_began_and_not_before_its_first_report(
    run: Run,
) -> None:
    """Decoders report every few steps, and the first report may come later than the first step."""
    run.told(run.report(10), FAILED, run.report(15, began_at=5))
    assert run.history.recoveries == [5]


def test_what_is_done_again_counts_once_as_it_was_at_last(run: Run) -> None:
    run.told(
        *(run.report(1), run.report(2, 0.4), FAILED),
        *(run.report(2, 0.3, began_at=1), run.report(3)),
    )
    assert run.reports == [(1, 0.5), (2, 0.3), (3, 0.5)]


def test_reports_beyond_where_it_resumed_are_forgotten(run: Run) -> None:
    run.told(*(run.report(each) for each in (2, 4, 6)), FAILED, run.report(3, began_at=2))
    assert [done for done, _ in run.reports] == [2, 3]


def test_a_failure_that_nothing_follows_is_no_recovery(run: Run) -> None:
    assert run.told(run.report(1), FAILED) == [run.report(1), FAILED]
    assert run.history.recoveries == []


def test_several_failures_before_the_next_report_are_one_recovery(run: Run) -> None:
    run.told(run.report(1), FAILED, FAILED, run.report(2, began_at=1))
    assert run.history.recoveries == [1]


def test_every_recovery_is_kept(run: Run) -> None:
    run.told(FAILED, run.report(1, began_at=0), run.report(2, began_at=0))
    run.told(FAILED, run.report(3, began_at=2))
    assert run.history.recoveries == [0, 2]


def test_where_a_worker_began_is_no_metric(run: Run) -> None:
    event = run.report(1, began_at=0)
    run.told(event)
    assert "began_at" not in run.history.reports[0]
    assert event == run.report(1, began_at=0)


def test_that_training_resumed_is_nothing_that_workers_tell(run: Run) -> None:
    assert run.told(Resumed(3)) == []
    assert run.history.recoveries == []


class _OfRay(Exception):
    """An error of Ray's that holds the worker's own."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a long text\nof Ray's")
        self.cause = cause


def test_a_workers_own_error_is_told_as_it_is() -> None:
    mistake = InputError("the module has no such class")
    causes = [ValueError("another"), _OfRay(mistake)]
    assert failure_of(RuntimeError(), causes, 0) is mistake


@pytest.mark.parametrize(
    ("causes", "seen"),
    [
        ([ValueError("first line\nlast line"), ValueError("another")], "last line"),
        ([_OfRay(ValueError("of the worker"))], "of the worker"),
        ([], "of Ray Train"),
    ],
)
def test_another_error_is_told_by_its_last_line(causes: list[Exception], seen: str) -> None:
    failure = failure_of(RuntimeError("of Ray Train"), causes, 2)
    assert isinstance(failure, WorkError)
    assert failure.seen == seen
    assert "training.max_failures (now 2)" in str(failure)


def test_ddps_error_of_an_unused_parameter_names_the_key() -> None:
    cause = RuntimeError("Expected to have finished reduction in the prior iteration before …")
    failure = failure_of(RuntimeError(), [cause], 0)
    assert "training.find_unused_parameters: true" in (failure.hint or "")


def test_an_error_without_a_text_is_told_by_its_name() -> None:
    assert failure_of(RuntimeError(), [], 0).seen == "RuntimeError"


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_a_fault_that_names_when(run: Run, loss: float) -> None:
    assert run.history.fault() is None
    run.told(run.report(1))
    assert run.history.fault() is None
    run.told(run.report(2, loss))
    fault = run.history.fault()
    assert fault is not None
    assert fault.what == f"the loss is not a number after {run.unit} 2"
    assert fault.seen == f"{run.loss} {loss}"
    assert fault.hint == run.advice
    assert "lower training.learning_rate" in run.advice
