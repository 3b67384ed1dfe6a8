import fcntl
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.data import lease
from millrace.models.data.folder import Folder
from millrace.models.data.lease import (
    EXPIRY_SECONDS,
    Work,
    held_names,
    hold_lease,
    hold_with_heartbeat,
    is_held,
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "leases"))


def test_a_job_that_is_running_is_not_run_again(folder: Folder) -> None:
    with (
        hold_lease(folder, "a"),
        pytest.raises(TransientError, match="another run of this job is in progress") as caught,
        hold_lease(folder, "a"),
    ):
        pass
    assert "seen: process " in str(caught.value)


def test_another_job_may_run_beside_it(folder: Folder) -> None:
    with hold_lease(folder, "a"), hold_lease(folder, "b"):
        assert is_held(folder, "a")


def test_a_job_that_ended_may_run_again_and_leaves_nothing(folder: Folder) -> None:
    for _ in range(2):
        with hold_lease(folder, "a"):
            pass
    assert not is_held(folder, "a")
    assert list(Path(folder.uri).iterdir()) == []


def test_a_job_that_failed_may_run_again(folder: Folder) -> None:
    with pytest.raises(RuntimeError), hold_lease(folder, "a"):
        raise RuntimeError
    assert not is_held(folder, "a")


def test_the_lease_of_a_killed_process_is_gone_at_once(folder: Folder) -> None:
    program = f"""
        import time
        from millrace.models.data.folder import Folder
        from millrace.models.data.lease import hold_lease
        with hold_lease(Folder({folder.uri!r}), "a"):
            print("held", flush=True)
            time.sleep(600)
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_held(folder, "a")
        process.kill()
    assert not is_held(folder, "a")
    assert list(Path(folder.uri).iterdir()) == []


def test_the_names_of_the_held_leases_are_found(folder: Folder) -> None:
    assert held_names(folder) == set()
    with hold_lease(folder, "a"), hold_lease(folder, "b.c"):
        (Path(folder.uri) / "dead.lock").write_text("process 1 on host")
        assert held_names(folder) == {"a", "b.c"}
    assert held_names(folder) == set()


def test_an_owner_never_fails_because_somebody_asks_about_its_lease(folder: Folder) -> None:
    ended = Event()

    def ask() -> None:
        while not ended.is_set():
            held_names(folder)

    with ThreadPoolExecutor(2) as threads:
        asking = [threads.submit(ask) for _ in range(2)]
        try:
            for name in (f"a{n % 3}" for n in range(500)):
                with hold_lease(folder, name):
                    assert is_held(folder, name)
        finally:
            ended.set()
    for each in asking:
        each.result()


def test_an_owner_waits_until_the_one_who_asks_has_let_go(folder: Folder) -> None:
    folder.make()
    path = Path(folder.uri) / "a.lock"
    with path.open("a+") as asks:
        fcntl.flock(asks, fcntl.LOCK_SH)
        Thread(target=lambda: (time.sleep(0.05), fcntl.flock(asks, fcntl.LOCK_UN))).start()
        with hold_lease(folder, "a"):
            assert is_held(folder, "a")


def test_the_file_of_an_owner_that_is_about_to_lock_it_stays(folder: Folder) -> None:
    folder.make()
    path = Path(folder.uri) / "a.lock"
    with path.open("a+"):
        assert not is_held(folder, "a")
        assert path.exists()


def test_on_a_store_without_locks_who_asks_writes_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make()
    monkeypatch.setattr(Folder, "is_local", False)
    with hold_lease(folder, "a"):
        folder.write_json("dead.lease", {"run": "r", "who": "w", "at": 0})
        monkeypatch.setattr(Folder, "write_json", None)
        assert held_names(folder) == {"a"}
        assert not is_held(folder, "b")
        monkeypatch.undo()


def test_on_a_store_without_locks_a_run_shows_that_it_lives(folder: Folder) -> None:
    folder.make()
    with hold_with_heartbeat(folder, "a", now=lambda: 1000.0):
        with (
            pytest.raises(TransientError, match="another run of this job is in progress"),
            hold_with_heartbeat(folder, "a", now=lambda: 999.0 + EXPIRY_SECONDS),
        ):
            pass
        with hold_with_heartbeat(folder, "a", now=lambda: 1001.0 + EXPIRY_SECONDS):
            pass  # the first is taken for dead


def test_on_a_store_without_locks_a_run_that_ended_holds_nothing(folder: Folder) -> None:
    folder.make()
    for _ in range(2):
        with hold_with_heartbeat(folder, "a", now=lambda: 1000.0):
            pass
    assert list(Path(folder.uri).iterdir()) == []


def test_a_second_run_is_told_what_is_in_progress(folder: Folder) -> None:
    work = Work("a training", "drink tea")
    folder.make()
    for held in (
        lambda: hold_lease(folder, "a", work),
        lambda: hold_with_heartbeat(folder, "a", work),
    ):
        with held(), pytest.raises(TransientError, match="a training is in progress") as caught:
            held().__enter__()
        assert "drink tea" in str(caught.value)


def test_a_lease_outlives_faults_of_the_store(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder.make()
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.01)
    write, beats, faults = Folder.write_json, Event(), iter([OSError("slow down")] * 2)

    def write_at_times(self: Folder, name: str, values: Any) -> None:
        if folder.read_json(name) is not None:
            if (fault := next(faults, None)) is not None:
                raise fault
            beats.set()
        write(self, name, values)

    monkeypatch.setattr(Folder, "write_json", write_at_times)
    with hold_with_heartbeat(folder, "a"):
        assert beats.wait(10)
    assert f"keeping the lease a in {folder.uri} failed" in caplog.text
    assert folder.read_json("a") is None


def test_a_job_does_not_fail_because_its_lease_cannot_be_deleted(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("slow down")

    folder.make()
    monkeypatch.setattr(Folder, "delete", refuse)
    with hold_with_heartbeat(folder, "a"):
        pass
    assert "the lease a in" in caplog.text
