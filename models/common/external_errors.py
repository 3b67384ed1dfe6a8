"""What an error of the operating system, a database or a service means to a user.

Libraries report a full disk or a corrupt database as errors of their own, often deep in a chain of
causes and as text: delta-rs, Arrow, SQLite, SQLAlchemy, MLflow and Prefect each in another form.
`outside_fault` reads the chain; what it does not know is a fault of Millrace.
"""

import errno
import os
import re
from collections.abc import Iterator

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.ray_folder import ray_logs

_TRY_AGAIN = "; then run the same command again: what was committed before is still there"
_ROOM = f"make room on the disks of MILLRACE_HOME, MILLRACE_TABLES and {{temporary}}{_TRY_AGAIN}"
_WRITABLE = f"make MILLRACE_HOME and MILLRACE_TABLES writable{_TRY_AGAIN}"
_BACKUP = "move the file away or bring it back from a backup"

_DAMAGED = "a Parquet file is damaged", _BACKUP

_BY_ERRNO = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the quota of the disk is used up", _ROOM),
    errno.EROFS: ("the file system is read-only", _WRITABLE),
    errno.EIO: ("the disk cannot be read or written", "see the system's log for its faults"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 65536"),
    errno.ENOMEM: ("there is no memory left", "stop other programs, or use a larger machine"),
    errno.EACCES: ("a file may not be used by this user", _WRITABLE),
    errno.EPERM: ("a file may not be used by this user", _WRITABLE),
}
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_BY_TEXT = (
    (r"database or disk is full|no space left on device", *_BY_ERRNO[errno.ENOSPC]),
    (r"read-?only (?:file system|database)", *_BY_ERRNO[errno.EROFS]),
    (r"disk i/o error", *_BY_ERRNO[errno.EIO]),
    (r"too many open files", *_BY_ERRNO[errno.EMFILE]),
    (r"cannot allocate memory", *_BY_ERRNO[errno.ENOMEM]),
    (r"file is not a database|database disk image is malformed", "a database is corrupt", _BACKUP),
    (r"no such table|no such column|can't locate revision", "a database is not whole", _BACKUP),
    (r"parquet magic bytes not found|parquet file size is \d+ bytes|deserialize thrift", *_DAMAGED),
    (r"unable to open database file", "a database cannot be opened", _WRITABLE),
)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_TABLE_FAULTS = ("deltalake", "_internal")


def outside_fault(error: BaseException) -> MillraceError | None:
    """Return the error to show for one that Millrace did not cause, or None.

    Args:
        error: whatever was raised; its causes and contexts are read too.
    """
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, MillraceError):
            return each
    for each in chain:
        if (known := _known(each)) is not None:
            what, hint = known
            return WorkError(what, seen=_seen(each), hint=hint.format(temporary=_temporary()))
    return next((found for each in chain if (found := _service(each)) is not None), None)


def is_of_the_disk(error: BaseException) -> bool:
    """Return whether an error came of the disk, so that it says nothing of what was worked on."""
    return any(isinstance(each, OSError) and each.errno in _OF_THE_DISK for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from, each once."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop(0)
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        left += [each.__cause__, each.__context__, *inner]


def _known(error: BaseException) -> tuple[str, str] | None:
    """Return what failed and the next step, by error number or by text."""
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if (named := _OS_ERROR.search(text)) is not None:
        number = int(named[1])
    if number in _BY_ERRNO:
        return _BY_ERRNO[number]
    lowered = text.lower()
    return next(((what, hint) for words, what, hint in _BY_TEXT if re.search(words, lowered)), None)


def _service(error: BaseException) -> MillraceError | None:
    """Return what a library's own error means that says nothing of the system."""
    package = type(error).__module__.partition(".")[0]
    if package in _TABLE_FAULTS:
        hint = "see whether files of the table are missing or damaged; bring them back"
        return WorkError("a Delta table cannot be read or written", seen=_seen(error), hint=hint)
    if package == "mlflow":
        hint = "see MLflow's log, and MLFLOW_TRACKING_URI" + _TRY_AGAIN
        return TransientError("MLflow failed", seen=_seen(error), hint=hint)
    if package in ("httpx", "httpcore", "prefect"):
        hint = "see Prefect's log, and PREFECT_API_URL" + _TRY_AGAIN
        return TransientError("Prefect failed", seen=_seen(error), hint=hint)
    if package == "ray":
        hint = f"run the same command again; why is in {ray_logs()}"
        what = "Ray failed under the command; nothing unfinished was published"
        return WorkError(what, seen=_seen(error), hint=hint)
    if package in ("sqlalchemy", "sqlite3", "alembic"):
        hint = "see MLFLOW_TRACKING_URI, and the log of that database" + _TRY_AGAIN
        return TransientError("the database failed", seen=_seen(error), hint=hint)
    return None


def _seen(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:400]


def _temporary() -> str:
    return os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - only named
