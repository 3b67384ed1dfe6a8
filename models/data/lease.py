"""A lease on a job: only one run at a time works in the job's folder.

On a file system the lease `NAME.lock` is a lock of the kernel. An object store has no locks, so
there the lease `NAME.lease` is a file that its holder rewrites every `HEARTBEAT_SECONDS`.
"""

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from millrace.models.common.errors import TransientError
from millrace.models.common.file_locks import try_lock
from millrace.models.common.slow_step import repeat_while
from millrace.models.data.folder import Folder

log = logging.getLogger("millrace")

LOCK, LEASE = ".lock", ".lease"
HEARTBEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0
"""A lease on an object store expires this long after its last heartbeat."""
TRIES = 25
"""How often a lock is tried: whoever asks whether it is held has it for a moment."""
LONGEST_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Work:
    """What a lease is for, as a second run is told.

    Attributes:
        what: what is in progress.
        hint: what the user can do.
    """

    what: str
    hint: str = "wait until it ends, or stop it"


JOB = Work("another run of this job")


@contextmanager
def hold_lease(folder: Folder, name: str, work: Work = JOB) -> Iterator[None]:
    """Hold the lease of a job while the block runs; the lease ends if the process dies.

    Args:
        folder: the folder of the leases.
        name: the job's name.
        work: what the lease is for.

    Raises:
        TransientError: another run holds the lease.
    """
    folder.make()
    if folder.is_local:
        with _lock_file(_path_of(folder, name), work):
            yield
    else:
        with hold_with_heartbeat(folder, f"{name}{LEASE}", work):
            yield


def is_held(folder: Folder, name: str) -> bool:
    """Return whether a run holds the lease of a job; a run that takes it meanwhile succeeds."""
    if folder.is_local:
        return _is_locked(_path_of(folder, name))
    return _is_beating(folder.read_json(f"{name}{LEASE}"), time.time())


def held_names(folder: Folder) -> set[str]:
    """Return the names of the jobs whose leases in a folder are held."""
    ending = LOCK if folder.is_local else LEASE
    names = {file.base_name.removesuffix(ending) for file in folder.files(ending)}
    return {name for name in names if is_held(folder, name)}


def _path_of(folder: Folder, name: str) -> Path:
    return Path(folder.location[1]) / f"{name}{LOCK}"


@contextmanager
def _lock_file(path: Path, work: Work) -> Iterator[None]:
    with _open_locked(path, work) as file:
        file.truncate(0)
        file.write(_describe_process())
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _open_locked(path: Path, work: Work) -> IO[str]:
    """Return the lock's file, locked for this process alone."""
    for left in reversed(range(TRIES)):
        file = path.open("a+")
        if try_lock(file):
            if _is_at(file, path):
                return file
        elif not left:
            file.seek(0)
            holder = file.read()
            file.close()
            raise _in_progress(work, holder)
        file.close()
        time.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))
    raise _in_progress(work, "")


def _is_locked(path: Path) -> bool:
    """Return whether a process has a lock for itself alone; delete what a dead process left."""
    try:
        file = path.open("r+")
    except FileNotFoundError:
        return False
    with file:
        if not try_lock(file, shared=True):
            return True
        # An empty file may be one that its owner has opened, and locks next.
        if os.fstat(file.fileno()).st_size and try_lock(file):
            with suppress(FileNotFoundError):
                if _is_at(file, path):
                    path.unlink()
        return False


def _is_at(file: IO[str], path: Path) -> bool:
    """Return whether an open file is still the one at a path: a holder deletes it when it ends."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def hold_with_heartbeat(
    folder: Folder, name: str, work: Work = JOB, now: Callable[[], float] = time.time
) -> Iterator[None]:
    """Hold a lease by rewriting a file with the current time.

    Args:
        folder: the folder of the file.
        name: the file's name.
        work: what the lease is for.
        now: returns the time, in seconds since 1970.

    Raises:
        TransientError: another run holds the lease.
    """
    run = uuid4().hex
    before = folder.read_json(name)
    if _is_beating(before, now()):
        raise _in_progress(work, before["who"])

    def beat() -> None:
        folder.write_json(name, {"run": run, "who": _describe_process(), "at": now()})

    beat()
    try:
        with repeat_while(HEARTBEAT_SECONDS, beat, f"keeping the lease {name} in {folder.uri}"):
            yield
    finally:
        _end_lease(folder, name, run)


def _end_lease(folder: Folder, name: str, run: str) -> None:
    try:
        left = folder.read_json(name)
        if left and left["run"] == run:
            folder.delete(name)
    except OSError as error:  # it expires by itself
        after = f"it ends after {EXPIRY_SECONDS:.0f} s"
        log.warning("the lease %s in %s is not deleted; %s: %s", name, folder.uri, after, error)


def _is_beating(content: Any, now: float) -> bool:
    """Return whether the content of a lease on an object store is that of a run that lives."""
    return bool(content and content["run"] and now - content["at"] < EXPIRY_SECONDS)


def _describe_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _in_progress(work: Work, holder: str) -> TransientError:
    return TransientError(
        f"{work.what} is in progress", seen=holder or "another process", hint=work.hint
    )
