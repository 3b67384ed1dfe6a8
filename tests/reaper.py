"""Ends what a test run has started and left behind: Ray, Prefect, Triton, commands.

A run that is interrupted or killed cannot do it itself, and `up` starts services that are meant to
outlive it. Every process of a run inherits a variable of its environment, except Triton and Envoy,
which get an environment of their own. So a process of its own notes the descendants of the run,
waits for its end, and then kills them and all that have the variable.
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
LOOK_S = float(os.environ.get("TEST_RUN_LOOK_S", "2"))
"""Between two looks for new descendants."""
STATE, PARENT, START = 0, 1, 19
"""Fields of `/proc/PID/stat` after the name."""


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


def stat_of(folder: Path) -> list[str]:
    """Return the fields of `/proc/PID/stat` that follow the name, which may have spaces."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def note_descendants(known: dict[int, str]) -> None:
    """Add the descendants of the processes that are known, each with the time of its start."""
    parents, starts = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields, pid = stat_of(folder), int(folder.name)
            if fields[STATE] != "Z":
                parents[pid], starts[pid] = int(fields[PARENT]), fields[START]
    for pid in [pid for pid, start in known.items() if starts.get(pid) != start]:
        del known[pid]  # it has ended
    new = set(known)
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - known.keys()
        known.update((pid, starts[pid]) for pid in new)


def main(pid: int, name: str) -> None:
    """Wait for the end of a process, then kill those of its run."""
    known: dict[int, str] = {}
    with suppress(OSError):  # it has ended already
        ended = os.pidfd_open(pid)
        known[pid] = stat_of(Path(f"/proc/{pid}"))[START]
        while not select.select([ended], [], [], LOOK_S)[0]:
            note_descendants(known)
            known.pop(os.getpid(), None)
    deadline = time.monotonic() + PATIENCE_S
    # Again and again: a supervisor may have started another one meanwhile.
    while (left := processes_left(name, known)) and time.monotonic() < deadline:
        for each in left:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        time.sleep(0.2)


def processes_left(name: str, known: dict[int, str]) -> set[int]:
    """Return the processes of a run that has ended."""
    for pid in processes_of(name):
        with suppress(OSError):
            known[pid] = stat_of(Path(f"/proc/{pid}"))[START]
    note_descendants(known)
    return set(known)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
