"""Locks on open files: each lasts until the file is closed, or the process that opened it ends."""

import fcntl
import os
from pathlib import Path
from typing import IO, Any


def try_lock(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file, and return whether that was possible; never wait.

    Args:
        file: the file.
        shared: whether other processes may have a shared lock meanwhile.
    """
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_private(path: Path) -> IO[bytes]:
    """Open a file for a lock, which only this user may read; create it if it is missing."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")


def is_locked(path: Path, *, also_shared: bool = False) -> bool:
    """Return whether a process has locked a file; a file that cannot be opened is not locked.

    Args:
        path: the file.
        also_shared: whether a shared lock counts. To find that out, the file is locked exclusively
            for a moment.
    """
    try:
        with path.open("rb") as file:
            return not try_lock(file, shared=not also_shared)
    except OSError:
        return False
