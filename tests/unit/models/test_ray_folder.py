"""The folder of the embedded Ray is nobody else's, and nobody can stop it from being made."""

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.models.common import ray_folder as module
from millrace.models.common.errors import WorkError
from millrace.models.common.ray_folder import is_private, ray_folder, ray_folders


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return tmp_path


def test_it_is_made_once_and_private(base: Path) -> None:
    found = ray_folder()
    assert found == ray_folder()
    assert (found.parent.parent, found.parent.stat().st_mode & 0o777) == (base, 0o700)
    assert [*ray_folders()] == [found]


@pytest.mark.parametrize("mode", [0o755, 0o701, 0o777])
def test_one_that_others_may_enter_is_not_taken(mode: int) -> None:
    first = ray_folder().parent
    first.chmod(mode)
    assert ray_folder().parent != first
    assert is_private(ray_folder().parent)


def test_a_link_is_not_followed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = ray_folder().parent
    first.rmdir()
    first.symlink_to(tmp_path_factory.mktemp("elsewhere"))
    assert ray_folder().parent != first
    assert not ray_folder().parent.is_symlink()


def test_without_a_place_it_says_what_to_do(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(base / "missing"))
    with pytest.raises(WorkError, match="RAY_TMPDIR"):
        ray_folder()
    monkeypatch.setenv("RAY_TMPDIR", str(base))
    monkeypatch.setattr(module, "is_private", lambda _: False)
    with pytest.raises(WorkError, match="and 19 similar paths exist"):
        ray_folder()


def test_what_rays_that_have_ended_left_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, now = ray_folder().parent, time.time()
    ended = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    gone, alive = int(ended.stdout), os.getpid()
    sockets = {pid: folder / f"fork-{pid}.sock-01000000" for pid in (gone, alive)}
    monkeypatch.chdir(folder)  # the path of a socket must be short
    for path in sockets.values():
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    sessions = [folder / "ray" / f"session_2026-01-01_00-00-00_1_{pid}" for pid in (gone, alive)]
    runs = [folder / name for name in ("run-free", "run-used", "run-new")]
    for path in (*sessions, *(run / "ray" for run in runs)):
        path.mkdir(parents=True)
    (runs[0] / "ray" / "share-0").touch()
    os.utime(sessions[0], (now, now - module.LOGS_SECONDS - 1))
    for run in runs[:2]:
        os.utime(run, (now, now - module.NEW_SECONDS - 1))
    with (runs[1] / "ray" / "share-0").open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        module.remove_leftovers(folder, now)
    left = {path.name for path in (*folder.iterdir(), *(folder / "ray").iterdir())}
    assert left == {"ray", "run-used", "run-new", sockets[alive].name, sessions[1].name}
