"""One run at a time works in the folder of a job."""

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
from millrace.serving.batch.folder import Folder

BEAT_SECONDS = 10.0
QUIET_SECONDS = 60.0
"""After which a run on an object store that does not show itself is taken for dead."""


@contextmanager
def held(folder: Folder, name: str) -> Iterator[None]:
    """Hold a job for the length of the block; the lease of a process that dies ends with it.

    On a file system it is a lock of the kernel's; on an object store, which has none, a file that
    is written again every `BEAT_SECONDS`.

    Args:
        folder: where the lease is.
        name: of the job.

    Raises:
        TransientError: another run holds it.
    """
    folder.make()
    if folder.is_local:
        with _locked(Path(folder.place[1]) / f"{name}.lock"):
            yield
    else:
        with beating(folder, f"{name}.lease"):
            yield


def is_held(folder: Folder, name: str) -> bool:
    """Return whether a run holds a job."""
    try:
        with held(folder, name):
            return False
    except TransientError:
        return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            who = file.read()
            file.close()
            raise _taken(who) from error
        # The one before removes the file when it is done: what is locked may be gone.
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()
    with file:
        file.truncate(0)
        file.write(_me())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def beating(folder: Folder, name: str, now: Callable[[], float] = time.time) -> Iterator[None]:
    """Hold a job by a file that shows that its run is alive.

    Args:
        folder: where the file is.
        name: of the file.
        now: the time, in seconds since 1970.

    Raises:
        TransientError: another run holds it.
    """
    mine, ended = uuid4().hex, Event()
    before = folder.read_json(name)
    if before and before["run"] and now() - before["at"] < QUIET_SECONDS:
        raise _taken(before["who"])

    def beat() -> None:
        folder.write_json(name, {"run": mine, "who": _me(), "at": now()})

    def beats() -> None:
        while not ended.wait(BEAT_SECONDS):
            beat()

    beat()
    thread = Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        folder.write_json(name, {"run": "", "who": "", "at": 0})


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _taken(who: str) -> TransientError:
    return TransientError(
        "this job is running already",
        seen=who or "another process",
        hint="wait for it to end, or end it; what it has done is kept",
    )
