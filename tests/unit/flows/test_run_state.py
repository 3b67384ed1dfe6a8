import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.flows import run_state, settings
from millrace.flows.run_state import START_SECONDS, RunRecord, ServiceRecord, wait_for_start
from millrace.flows.settings import Settings
from millrace.models.common.errors import SilentError, TransientError
from millrace.models.common.private_files import read_or_create_secret

RECORD = RunRecord(7, 1.5, (ServiceRecord("triton", "http://127.0.0.1:8000", "log", pid=8),))


def test_a_record_is_read_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    run_state.write(tmp_path, RECORD)
    assert run_state.read(tmp_path) == RECORD
    assert (tmp_path / run_state.RECORD).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [run_state.RECORD]


def test_a_record_that_cannot_be_read_is_no_record(tmp_path: Path) -> None:
    assert run_state.read(tmp_path) is None
    for text in ("", "[]", "{}", json.dumps({"pid": 1, "started_at": 0, "services": [{"x": 1}]})):
        (tmp_path / run_state.RECORD).write_text(text)
        assert run_state.read(tmp_path) is None


def test_a_record_lives_as_long_as_its_supervisor_holds_the_lock(tmp_path: Path) -> None:
    run_state.write(tmp_path, RECORD)
    assert run_state.read_live(tmp_path) is None
    lock = run_state.take_lock(tmp_path)
    assert lock is not None
    assert run_state.read_live(tmp_path) == RECORD
    assert run_state.take_lock(tmp_path, seconds=0) is None
    lock.close()
    assert run_state.read_live(tmp_path) is None


def test_all_who_ask_at_once_get_one_secret(tmp_path: Path) -> None:
    secrets = iter("abcdefgh")
    with ThreadPoolExecutor(8) as pool:
        got = set(
            pool.map(
                lambda _: read_or_create_secret(tmp_path / "key", lambda: next(secrets)), range(8)
            )
        )
    assert len(got) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


MLFLOW, PREFECT = "http://127.0.0.1:15000", "http://127.0.0.1:14200"
SERVICES = (ServiceRecord("mlflow", MLFLOW, "log"), ServiceRecord("prefect", PREFECT, "log"))


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Path]]:
    """Leave the record of an `up` that began so many seconds ago, and is alive."""
    monkeypatch.setattr(run_state, "RETRY_SECONDS", 0.01)
    for name in settings.variables():
        monkeypatch.delenv(name, raising=False)
    run = tmp_path / "run"
    run.mkdir()
    lock = run_state.take_lock(run)
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
    wait_for_start(up(1), address, failing(3))


def test_up_tells_an_address_before_anything_answers_there(up: Callable[[float], Path]) -> None:
    run = up(0)
    assert Settings(home=run.parent).installation().tracking_uri == MLFLOW


def test_what_up_did_not_just_start_is_missed_at_once(up: Callable[[float], Path]) -> None:
    for run, address in (
        (up(1), "http://127.0.0.1:5999"),
        (up(1) / "of_another_home", MLFLOW),
        (up(START_SECONDS + 1), MLFLOW),
    ):
        with pytest.raises(TransientError, match="cannot be reached"):
            wait_for_start(run, address, failing(1))


def test_a_service_that_stays_away_is_given_up(
    up: Callable[[float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_state, "START_SECONDS", 0.2)
    with pytest.raises(TransientError, match="cannot be reached"):
        wait_for_start(up(0), MLFLOW, failing(10_000))


def test_a_service_that_was_waited_for_and_is_silent_is_not_waited_for_again(
    up: Callable[[float], Path],
) -> None:
    with pytest.raises(SilentError):
        wait_for_start(up(1), MLFLOW, failing(1, SilentError))
