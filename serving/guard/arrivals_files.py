"""The files of recorded arrivals: the guard writes one, and it is rotated, compacted and removed.

Envoy writes to `arrivals/PORT.log` and does not rotate it. A rotation gives the file a second name
with the time, puts a new file in place of the first, and asks Envoy to open it. Until Envoy does,
its lines go to the old file, so none is lost. The old file is compacted once no process has it open
for writing, which a lease of the kernel tells. A guard that starts again adds to the file that is
there.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.guard.arrivals_log import FOLDER, log_path
from millrace.serving.guard.sockets import SocketConnection, guard_socket

ROTATE_BYTES = 16 * 2**20
ROTATE_SECONDS = 3600.0
REOPEN_SECONDS = 30.0
"""Where the file system has no leases, how long after a rotation a file counts as written to."""
MEGABYTE = 10**6


def prepare_log(installation: Installation, endpoint: Endpoint) -> str | None:
    """Make the file that a guard writes to, for its owner only, and return its relative path.

    Return None if arrivals are not recorded.

    Raises:
        OSError: the file cannot be made.
    """
    if installation.arrivals_kept.hours <= 0:
        return None
    path = log_path(endpoint)
    (installation.home / FOLDER).mkdir(mode=0o700, exist_ok=True)
    _create(installation.home / path)
    return path


def maintain_arrivals(installation: Installation, now: float) -> None:
    """Rotate, compact and remove files, as is due; called every minute.

    A file that fails stays, within the limits, and does not stop the others.

    Args:
        installation: has the files.
        now: seconds since 1970.

    Raises:
        OSError: an old file cannot be removed.
        WorkError: files cannot be read or written; it names them.
    """
    folder = installation.home / FOLDER
    faults = []
    for log in sorted(folder.glob("*.log")):
        try:
            _maintain(installation, log, now)
        except Exception as error:  # whatever a damaged file does to its readers
            faults.append(f"{log.name} ({type(error).__name__}: {error})")
    remove_old(installation, now)
    if faults:
        raise WorkError(", ".join(faults))


def _maintain(installation: Installation, log: Path, now: float) -> None:
    at = rotated_at(log)
    if at is None:
        rotate_if_due(installation, log, now)
    elif is_written(log, now - at):
        _reopen(installation, port_of(log))
    else:
        _compact(log)


def rotate_if_due(installation: Installation, log: Path, now: float) -> None:
    """Rotate the file that the guard writes to, if it is large or its first line is old."""
    size = log.stat().st_size
    if not size or (size < ROTATE_BYTES and now - _first_second(log, now) < ROTATE_SECONDS):
        return
    rotate(installation, log, now)


def rotate(installation: Installation, log: Path, now: float) -> None:
    """Give the guard a new file, and keep the old one under a name with the time."""
    fresh = log.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    _create(fresh)
    log.with_name(f"{int(now * 1e6)}-{log.name}").hardlink_to(log)
    fresh.replace(log)
    _reopen(installation, port_of(log))


def rotated_at(file: Path) -> float | None:
    """Return when a file was rotated, seconds since 1970; None if the guard writes to it."""
    stamp, dash, _ = file.stem.partition("-")
    return int(stamp) / 1e6 if dash and stamp.isdecimal() else None


def port_of(log: Path) -> int:
    """Return the HTTP port of the guard that a log is of."""
    return int(log.stem.rpartition("-")[2])


def is_written(log: Path, age: float) -> bool:
    """Return whether a process may still write to a rotated file.

    Args:
        log: the file.
        age: seconds since its rotation.
    """
    with log.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN or age < REOPEN_SECONDS
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def remove_old(installation: Installation, now: float) -> None:
    """Remove files that are older than the limit, then the oldest ones beyond the size.

    If arrivals are not recorded, all files are removed.
    """
    kept = installation.arrivals_kept
    left = kept.megabytes * MEGABYTE
    for file in _newest_first(installation.home / FOLDER):
        at = rotated_at(file)
        with suppress(FileNotFoundError):
            left -= file.stat().st_size
            is_old = at is not None and (left < 0 or now - at >= kept.hours * 3600)
            if is_old or kept.hours <= 0:
                file.unlink()


def _newest_first(folder: Path) -> Iterator[Path]:
    files = [(rotated_at(each), each) for each in folder.glob("*") if each.is_file()]
    yield from (each for at, each in files if at is None)
    yield from (each for _, each in sorted((f for f in files if f[0] is not None), reverse=True))


def _compact(log: Path) -> None:
    from millrace.serving.guard.arrivals_table import compact

    target = log.with_suffix(".parquet")
    if not target.exists():
        compact(log, target)
    log.unlink()


def _reopen(installation: Installation, port: int) -> None:
    """Ask the guard to open its file again; one that does not run opens it when it starts."""
    endpoint = Endpoint(http_port=port)
    connection = SocketConnection(installation.home / guard_socket(endpoint), timeout=5.0)
    try:
        with suppress(OSError, HTTPException):
            connection.request("POST", "/reopen_logs")
            connection.getresponse().read()
    finally:
        connection.close()


def _create(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    path.chmod(0o600)


def _first_second(log: Path, now: float) -> float:
    """Return when the first request of a log started, seconds since 1970."""
    with log.open("rb") as file:
        stamp = file.read(16)
    return int(stamp) / 1e6 if stamp.isdigit() else now
