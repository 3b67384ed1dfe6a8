import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from millrace.flows import run_state
from millrace.flows.run_state import RunRecord, ServiceRecord
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
    assert run_state.live(tmp_path) is None
    lock = run_state.hold_lock(tmp_path)
    assert lock is not None
    assert run_state.live(tmp_path) == RECORD
    assert run_state.hold_lock(tmp_path, seconds=0) is None
    lock.close()
    assert run_state.live(tmp_path) is None


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
