import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.training.history import History, failure_of
from millrace.models.training.progress import EpochEnded, Recovered, TrainEvent, WorkersFailed

FAILED = WorkersFailed({1: "OSError: gone"})


def ended(epoch: int, loss: float = 0.5) -> EpochEnded:
    return EpochEnded({"epoch": epoch, "loss": loss})


def told(history: History, *events: TrainEvent) -> list[TrainEvent]:
    return [known for event in events for known in history.add(event)]


def test_a_run_without_failures_has_its_epochs_and_no_recoveries() -> None:
    history = History()
    assert told(history, ended(1), ended(2)) == [ended(1), ended(2)]
    assert [epoch["epoch"] for epoch in history.epochs] == [1, 2]
    assert history.recoveries == []


@pytest.mark.parametrize(("done", "recovery"), [(0, 0), (2, 2)])
def test_training_that_went_on_is_told_with_the_epochs_done(done: int, recovery: int) -> None:
    history = History()
    before = [ended(epoch) for epoch in range(1, done + 1)]
    after = ended(done + 1)
    assert told(history, *before, FAILED, after) == [*before, FAILED, Recovered(recovery), after]
    assert history.recoveries == [recovery]


def test_an_epoch_that_is_done_again_counts_once_as_it_was_at_last() -> None:
    history = History()
    told(history, ended(1), ended(2, 0.4), FAILED, ended(2, 0.3), ended(3))
    assert [(e["epoch"], e["loss"]) for e in history.epochs] == [(1, 0.5), (2, 0.3), (3, 0.5)]


def test_a_failure_that_nothing_follows_is_no_recovery() -> None:
    history = History()
    told(history, ended(1), FAILED)
    assert history.recoveries == []


def test_several_failures_before_the_next_epoch_are_one_recovery() -> None:
    history = History()
    told(history, ended(1), FAILED, FAILED, ended(2))
    assert history.recoveries == [1]


def test_every_recovery_is_kept() -> None:
    history = History()
    told(history, FAILED, ended(1), ended(2), FAILED, ended(3))
    assert history.recoveries == [0, 2]


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


def test_a_run_whose_loss_is_not_a_number_is_a_fault_that_names_the_epoch() -> None:
    history = History()
    history.add(EpochEnded({"epoch": 1, "train_loss": 0.5}))
    history.add(EpochEnded({"epoch": 2, "train_loss": float("nan")}))
    fault = history.fault()
    assert fault is not None
    assert "epoch 2" in fault.what
    assert "learning_rate" in (fault.hint or "")


def test_a_run_that_learnt_has_no_fault() -> None:
    history = History()
    history.add(EpochEnded({"epoch": 1, "train_loss": 0.5}))
    assert history.fault() is None
