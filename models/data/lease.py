"""A lease on a job: only one run at a time works in the job's folder."""

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from millrace.models.common.errors import TransientError
from millrace.models.data.folder import Folder

HEARTBEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
"""A lease on an object store expires this long after its last heartbeat."""


@contextmanager
def hold_lease(folder: Folder, name: str) -> Iterator[None]:
    """Hold the lease of a job while the block runs; the lease ends if the process dies.

    On a file system the lease is a lock of the kernel. An object store has no locks, so there the
    lease is a file that is rewritten every `HEARTBEAT_SECONDS`.

    Args:
        folder: the folder of the leases.
        name: the job's name.

    Raises:
        TransientError: another run holds the lease.
    """
    folder.make()
    if folder.is_local:
        with _lock_file(Path(folder.location[1]) / f"{name}.lock"):
            yield
    else:
        with hold_with_heartbeat(folder, f"{name}.lease"):
            yield


def is_held(folder: Folder, name: str) -> bool:
    """Return whether a run holds the lease of a job."""
    try:
        with hold_lease(folder, name):
            return False
    except TransientError:
        return True


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read()
            file.close()
            raise _already_running(holder) from error
        # The previous holder deletes the file when it ends: the locked file may be deleted already.
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(_describe_process())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def hold_with_heartbeat(
    folder: Folder, name: str, now: Callable[[], float] = time.time
) -> Iterator[None]:
    """Hold a lease by rewriting a file with the current time.

    Args:
        folder: the folder of the file.
        name: the file's name.
        now: returns the time, in seconds since 1970.

    Raises:
        TransientError: another run holds the lease.
    """
    run, ended = uuid4().hex, Event()
    before = folder.read_json(name)
    if before and before["run"] and now() - before["at"] < EXPIRY_SECONDS:
        raise _already_running(before["who"])

    def beat() -> None:
        folder.write_json(name, {"run": run, "who": _describe_process(), "at": now()})

    def keep_beating() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            beat()

    beat()
    thread = Thread(target=keep_beating, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        folder.write_json(name, {"run": "", "who": "", "at": 0})


def _describe_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _already_running(holder: str) -> TransientError:
    return TransientError(
        "another run of this batch job is in progress",
        seen=holder or "another process",
        hint="wait until that run ends, or stop it; the rows that it has scored are kept",
    )
