"""Which log files processes write: each holds a shared lock on its log, and so do its children.

The kernel releases the lock when the last of them ends.
"""

import fcntl
from contextlib import suppress
from pathlib import Path


def hold_log(descriptor: int) -> None:
    """Mark an open log file as in use, as long as this process or a child has it open.

    Args:
        descriptor: the file's descriptor.
    """
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_log_in_use(file: Path) -> bool:
    """Return whether a process has a log open that it holds."""
    try:
        with file.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
