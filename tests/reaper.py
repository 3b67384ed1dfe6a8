"""Ends what a test run has started and left behind: Ray, Prefect, Triton, commands.

A run that is interrupted or killed cannot do it itself, and `up` starts services that are meant to
outlive it. Every process of a run inherits a variable of its environment; a process of its own
waits for the end of the run and then kills all that have it.
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

VARIABLE = "TEST_RUN_OF_PROCESS"
"""Not one of Millrace's, which the tests take out of the environment of a home."""
PATIENCE_S = 30.0


def start() -> None:
    """Mark this process's future children, and have them end after it."""
    if sys.platform != "linux" or VARIABLE in os.environ:
        return
    name = f"{os.getpid()}-{time.time_ns()}"
    subprocess.Popen(
        [sys.executable, "-S", __file__, str(os.getpid()), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is not for it
    )
    os.environ[VARIABLE] = name


def processes_of(name: str) -> list[int]:
    """Return the processes that were started with a value of the variable."""
    found, entry = [], f"{VARIABLE}={name}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def main(pid: int, name: str) -> None:
    """Wait for the end of a process, then kill those of its run."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    deadline = time.monotonic() + PATIENCE_S
    # Again and again: a supervisor may have started another one meanwhile.
    while (left := processes_of(name)) and time.monotonic() < deadline:
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.2)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
