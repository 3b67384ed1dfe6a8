"""A temporary folder of a process; the next process removes those of killed ones.

A killed process removes nothing, and a copy of a language model is gigabytes.
"""

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.models.common.file_locks import is_locked, open_private, try_lock

LOCK = ".lock"
NEW_SECONDS = 60.0
"""A folder may be that new and not be locked yet."""


@contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Make a temporary folder, and remove those with this prefix whose process was killed.

    Args:
        prefix: of the folder's name.
    """
    remove_left_behind(Path(tempfile.gettempdir()), prefix, time.time())
    with tempfile.TemporaryDirectory(prefix=prefix) as name, open_private(Path(name, LOCK)) as lock:
        try_lock(lock)  # nobody else knows the folder
        yield Path(name)


def remove_left_behind(parent: Path, prefix: str, now: float) -> None:
    """Remove the folders with this prefix that no process uses.

    A folder is used while its lock is held. Those of other users and links are left.

    Args:
        parent: the folder of temporary folders.
        prefix: of their names.
        now: seconds since the epoch.
    """
    for folder in parent.glob(f"{prefix}*"):
        try:
            found = folder.lstat()
        except OSError:
            continue
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        is_left = now - found.st_mtime > NEW_SECONDS and (folder / LOCK).is_file()
        if is_ours and is_left and not is_locked(folder / LOCK):
            shutil.rmtree(folder, ignore_errors=True)
