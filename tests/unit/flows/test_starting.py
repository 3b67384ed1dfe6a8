import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace.flows import run_state, settings
from millrace.flows.run_state import RunRecord, ServiceRecord
from millrace.flows.services import starting
from millrace.flows.services.starting import START_SECONDS, once_started
from millrace.flows.settings import Settings
from millrace.models.common.errors import SilentError, TransientError

MLFLOW, PREFECT = "http://127.0.0.1:15000", "http://127.0.0.1:14200"
SERVICES = (ServiceRecord("mlflow", MLFLOW, "log"), ServiceRecord("prefect", PREFECT, "log"))


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Path]]:
    """Leave the record of an `up` that began so many seconds ago, and is alive."""
    monkeypatch.setattr(starting, "LOOK_SECONDS", 0.01)
    for name in settings.variables():
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "run"
    run.mkdir()
    lock = run_state.hold_lock(run)
    assert lock is not None

    def began(seconds: float) -> Path:
        run_state.write(run, RunRecord(7, time.time() - seconds, SERVICES))
        return run

    yield began
    lock.close()


def failing(times: int, kind: type[TransientError] = TransientError) -> Callable[[], None]:
    left = [times]

    def look() -> None:
        if left[0]:
            left[0] -= 1
            raise kind("MLflow cannot be reached")

    return look


@pytest.mark.parametrize("address", [MLFLOW, f"{PREFECT}/api"])
def test_a_service_that_up_is_starting_is_waited_for(
    up: Callable[[float], Path], address: str
) -> None:
    once_started(up(1), address, failing(3))


def test_up_tells_an_address_before_anything_answers_there(up: Callable[[float], Path]) -> None:
    run = up(0)
    assert Settings(home=run.parent).places().tracking_uri == MLFLOW


def test_what_up_did_not_just_start_is_missed_at_once(up: Callable[[float], Path]) -> None:
    for run, address in (
        (up(1), "http://127.0.0.1:5999"),
        (up(1) / "of_another_home", MLFLOW),
        (up(START_SECONDS + 1), MLFLOW),
    ):
        with pytest.raises(TransientError, match="cannot be reached"):
            once_started(run, address, failing(1))


def test_a_service_that_stays_away_is_given_up(
    up: Callable[[float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starting, "START_SECONDS", 0.2)
    with pytest.raises(TransientError, match="cannot be reached"):
        once_started(up(0), MLFLOW, failing(10_000))


def test_a_service_that_was_waited_for_and_is_silent_is_not_waited_for_again(
    up: Callable[[float], Path],
) -> None:
    with pytest.raises(SilentError):
        once_started(up(1), MLFLOW, failing(1, SilentError))
