"""Temporary folders: removed at the end, and those of killed processes by the next one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millrace.models.common.file_locks import try_lock
from millrace.models.common.own_folder import LOCK, NEW_SECONDS, own_folder, remove_left_behind

PREFIX = "millrace-test-"


def test_a_folder_ends_with_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with own_folder(PREFIX) as folder:
        (folder / "model").write_bytes(b"weights")
        assert folder.parent == tmp_path
        assert folder.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == []


def test_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    names = ("killed", "used", "new", "without-lock")
    folders = {name: tmp_path / f"{PREFIX}{name}" for name in names}
    other, linked = tmp_path / "other", tmp_path / f"{PREFIX}linked"
    for folder in (*folders.values(), other):
        folder.mkdir()
        (folder / LOCK).touch()
    (folders["without-lock"] / LOCK).unlink()
    linked.symlink_to(other)
    now = time.time()
    for name in ("killed", "used", "without-lock"):
        os.utime(folders[name], (now, now - NEW_SECONDS - 1))
    with (folders["used"] / LOCK).open("rb") as held:
        assert try_lock(held)
        remove_left_behind(tmp_path, PREFIX, now)
    left = {folders[name] for name in ("used", "new", "without-lock")} | {other, linked}
    assert set(tmp_path.iterdir()) == left


def test_what_still_runs_on_a_left_folder_is_killed_and_nothing_else(tmp_path: Path) -> None:
    now = time.time()
    left, used = tmp_path / f"{PREFIX}left", tmp_path / f"{PREFIX}used"
    for folder in (left, used):
        folder.mkdir()
        (folder / LOCK).touch()
        os.utime(folder, (now, now - NEW_SECONDS - 1))
    paths = (left, left / "stub", f"--model={left}/m", used / "stub", f"{left}2/stub", tmp_path)
    sleep = (sys.executable, "-c", "import time; time.sleep(60)")
    processes = [subprocess.Popen([*sleep, path], start_new_session=True) for path in paths]
    seen: list[tuple[Path, bool]] = []
    try:
        with (used / LOCK).open("rb") as held:
            assert try_lock(held)
            remove_left_behind(
                tmp_path, PREFIX, now, lambda each: seen.append((each, each.is_dir()))
            )
        ended = [each.poll() is not None for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    assert ended == [True, True, True, False, False, False]
    assert seen == [(left, True)]
    assert list(tmp_path.iterdir()) == [used]


def test_a_folder_in_use_is_kept_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with own_folder(PREFIX) as folder:
        os.utime(folder, (0, 0))
        with own_folder(PREFIX) as other:
            assert folder.exists()
            assert other != folder
