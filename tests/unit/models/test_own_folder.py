"""Temporary folders: removed at the end, and those of killed processes by the next one."""

import os
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


def test_a_folder_in_use_is_kept_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with own_folder(PREFIX) as folder:
        os.utime(folder, (0, 0))
        with own_folder(PREFIX) as other:
            assert folder.exists()
            assert other != folder
