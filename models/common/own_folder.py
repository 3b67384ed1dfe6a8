"""A temporary folder of a process; the next process removes those of killed ones.

A killed process removes nothing, and a copy of a language model is gigabytes. Nor does it end the
processes that it started, which go on with the files of a folder that nobody uses.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from millrace.models.common.file_locks import is_locked, open_private, try_lock

LOCK = ".lock"
NEW_SECONDS = 60.0
"""A folder may be that new and not be locked yet."""
END_SECONDS = 5.0
"""How long to wait for killed processes, which have files open."""


@contextmanager
def own_folder(
    prefix: str, also_remove: Callable[[Path], object] = lambda folder: None
) -> Iterator[Path]:
    """Make a temporary folder, and remove those with this prefix whose process was killed.

    Args:
        prefix: of the folder's name.
        also_remove: removes what belongs to a killed process's folder and lies elsewhere.
    """
    remove_left_behind(Path(tempfile.gettempdir()), prefix, time.time(), also_remove)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, open_private(Path(name, LOCK)) as lock:
        try_lock(lock)  # nobody else knows the folder
        yield Path(name)


def remove_left_behind(
    parent: Path,
    prefix: str,
    now: float,
    also_remove: Callable[[Path], object] = lambda folder: None,
) -> None:
    """Remove the folders with this prefix that no process uses, and end what still runs on them.

    A folder is used while its lock is held. Those of other users and links are left.

    Args:
        parent: the folder of temporary folders.
        prefix: of their names.
        now: seconds since the epoch.
        also_remove: is called with each folder before it is removed, when its processes have ended.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            found = folder.lstat()
        except OSError:
            continue
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        is_left = now - found.st_mtime > NEW_SECONDS and (folder / LOCK).is_file()
        if is_ours and is_left and not is_locked(folder / LOCK):
            _kill_processes_on(folder)
            also_remove(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _kill_processes_on(folder: Path) -> None:
    """Kill this user's processes whose command line has the folder's path, and wait for their end.

    Those at a terminal are left: there a person looks at the folder. So are this process and those
    that started it.
    """
    this = psutil.Process()
    spared = {each.pid for each in (this, *this.parents())}
    killed = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in spared and _is_on(process, str(folder)):
                process.kill()
                killed.append(process)
    psutil.wait_procs(killed, timeout=END_SECONDS)


def _is_on(process: psutil.Process, folder: str) -> bool:
    if process.uids().real != os.getuid() or process.terminal() is not None:
        return False
    return any(f"{folder}/" in f"{argument}/" for argument in process.cmdline())
