"""The lowest priority that the kernel gives a process: work that waits until nothing else has any.

Linux shares the cores among sessions first (autogroups), and among the threads of a session by
their priority: a program of priority 19 in a session of its own has as much right to a core as a
server in another. So a process leaves its session, and asks for little as a session as well.

Source: sched(7), "The autogroup feature" and "SCHED_IDLE".
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOW_PRIORITY = "MILLRACE_LOW_PRIORITY"
"""The variable by which a command asks for the lowest priority for the workers of its Ray job."""
AUTOGROUP = Path("/proc/self/autogroup")
LOWEST = 19


@contextmanager
def with_low_priority() -> Iterator[None]:
    """Ask for it while the block runs, which connects to Ray."""
    os.environ[LOW_PRIORITY] = "1"
    try:
        yield
    finally:
        os.environ.pop(LOW_PRIORITY, None)


def lower_priority() -> None:
    """Give this process the lowest priority, with the threads and processes that it starts.

    It cannot be undone without privileges. What this kernel does not have is left out.
    """
    with suppress(PermissionError, FileNotFoundError):  # a group's leader stays in its session
        os.setsid()
        AUTOGROUP.write_text(str(LOWEST))  # never that of a session with other programs
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
