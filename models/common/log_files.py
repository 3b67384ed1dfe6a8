"""Which log files processes write: each holds a shared lock on its log, and so do its children.

The kernel releases the lock when the last of them ends.
"""

import fcntl
from contextlib import suppress
from pathlib import Path

from millrace.models.common.file_locks import is_locked


def hold_log(descriptor: int) -> None:
    """Mark an open log file as in use, as long as this process or a child has it open.

    Args:
        descriptor: the file's descriptor.
    """
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_log_in_use(file: Path) -> bool:
    """Return whether a process has a log open that it holds."""
    return is_locked(file, also_shared=True)
