from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, MillraceError, SilentError, TransientError
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks import tracking_outage
from millrace.tasks.tracking_outage import await_mlflow, weights_named

RUN = TrackedRun("http://mlflow", "1", "r1")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What MLflow does at each look, the next one first."""
    looks: list[bool] = []

    def check(_: str) -> None:
        if not looks.pop(0):
            raise SilentError("MLflow cannot be reached")

    monkeypatch.setattr(tracking_outage, "check_reachable", check)
    monkeypatch.setattr(tracking_outage, "LOOK_S", 0.01)
    return looks


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path, "http://mlflow", "")


def trained(installation: Installation) -> Path:
    folder = installation.home / "training" / "r1"
    (folder / "checkpoint_1").mkdir(parents=True)
    return folder


def test_what_was_trained_waits_for_mlflow(
    answers: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    answers += [False, False, True]
    await_mlflow("http://mlflow")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "MLflow cannot be reached: the trained model waits up to 10 minutes for MLflow",
        "MLflow answers again; the run goes on",
    ]


def test_it_does_not_wait_for_ever(answers: list[bool]) -> None:
    answers += [False] * 2
    with pytest.raises(TransientError, match="MLflow cannot be reached"):
        await_mlflow("http://mlflow", wait_s=0)


def test_an_error_after_training_names_the_weights(installation: Installation) -> None:
    folder = trained(installation)
    with pytest.raises(SilentError, match="it is away") as told, weights_named(installation, RUN):
        raise SilentError("it is away", seen="nothing", hint="start it")
    wanted = f"start it; a new run trains again; the weights that this run trained are in {folder}"
    assert (told.value.seen, told.value.hint) == ("nothing", wanted)


def test_an_error_before_it_is_told_as_it_is(installation: Installation) -> None:
    error = TransientError("it is away")
    with pytest.raises(TransientError) as told, weights_named(installation, RUN):
        raise error
    assert told.value is error


@pytest.mark.parametrize("error", [InputError("the user's"), KeyError("ours")])
def test_what_is_no_outage_is_told_as_it_is(installation: Installation, error: Exception) -> None:
    trained(installation)
    with pytest.raises((MillraceError, KeyError)) as told, weights_named(installation, RUN):
        raise error
    assert told.value is error
