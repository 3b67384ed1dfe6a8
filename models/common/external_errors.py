"""Explains errors of the operating system, a database or a service to the user.

Libraries such as delta-rs, Arrow, SQLite, SQLAlchemy, MLflow and Prefect report a full disk or a
corrupt database as errors of their own, often as text and deep in a chain of causes.
`explain_external_error` reads the chain. An error that this function does not know is a bug in
Millrace.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.ray_folder import ray_logs

_TRY_AGAIN = "; then run the same command again: everything committed before the error is kept"
_ROOM = f"make room on the disks of MILLRACE_HOME, MILLRACE_TABLES and {{temporary}}{_TRY_AGAIN}"
_WRITABLE = f"make MILLRACE_HOME and MILLRACE_TABLES writable{_TRY_AGAIN}"
_BACKUP = "restore the file from a backup, or move it away"

_DAMAGED = "a Parquet file is damaged", _BACKUP

_BY_ERRNO = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the quota of the disk is used up", _ROOM),
    errno.EROFS: ("the file system is read-only", _WRITABLE),
    errno.EIO: ("the disk cannot be read or written", "check the system log for disk errors"),
    errno.EMFILE: ("too many files are open", "raise the limit: ulimit -n 65536"),
    errno.ENOMEM: ("there is no memory left", "stop other programs, or use a larger machine"),
    errno.EACCES: ("this user may not read or write a file", _WRITABLE),
    errno.ENOTDIR: (
        "a path leads through a file that is no folder",
        "check MILLRACE_HOME and MILLRACE_TABLES; then run the same command again",
    ),
    errno.EPERM: ("this user may not read or write a file", _WRITABLE),
}
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
_BY_TEXT = (
    (r"database or disk is full|no space left on device", *_BY_ERRNO[errno.ENOSPC]),
    (r"read-?only (?:file system|database)", *_BY_ERRNO[errno.EROFS]),
    (r"disk i/o error", *_BY_ERRNO[errno.EIO]),
    (r"too many open files", *_BY_ERRNO[errno.EMFILE]),
    (r"cannot allocate memory", *_BY_ERRNO[errno.ENOMEM]),
    (r"file is not a database|database disk image is malformed", "a database is corrupt", _BACKUP),
    (r"no such table|no such column|can't locate revision", "a database is incomplete", _BACKUP),
    (r"parquet magic bytes not found|parquet file size is \d+ bytes|deserialize thrift", *_DAMAGED),
    (r"unable to open database file", "a database cannot be opened", _WRITABLE),
)
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_BY_PACKAGE: tuple[tuple[tuple[str, ...], type[WorkError], str, str], ...] = (
    (
        ("deltalake", "_internal"),
        WorkError,
        "a Delta table cannot be read or written",
        "check whether files of the table are missing or damaged, and restore them",
    ),
    (
        ("mlflow",),
        TransientError,
        "MLflow failed",
        "check MLflow's log and MLFLOW_TRACKING_URI" + _TRY_AGAIN,
    ),
    (
        ("httpx", "httpcore", "prefect"),
        TransientError,
        "Prefect failed",
        "check Prefect's log and PREFECT_API_URL" + _TRY_AGAIN,
    ),
    (
        ("ray",),
        WorkError,
        "Ray failed during the command; nothing unfinished was published",
        "run the same command again; the cause is in {ray_logs}",
    ),
    (
        ("sqlalchemy", "sqlite3", "alembic"),
        TransientError,
        "the database failed",
        "check MLFLOW_TRACKING_URI and the log of the database" + _TRY_AGAIN,
    ),
)
"""How to report a library's error whose text names no system error.

Each entry has the library's packages, the error class, what failed and the hint.
"""


def explain_external_error(error: BaseException) -> MillraceError | None:
    """Return the error to show for an exception that Millrace did not cause; None if unknown.

    Args:
        error: any exception; its causes and contexts are read too.
    """
    chain = list(_walk_chain(error))
    for each in chain:
        if isinstance(each, MillraceError):
            return each
    for explain in (_explain_system_error, _explain_library_error):
        for each in chain:
            if (explained := explain(each)) is not None:
                return explained
    return None


def is_disk_error(error: BaseException) -> bool:
    """Return whether a disk caused an error; the file or version itself is then not at fault."""
    return any(
        isinstance(each, OSError) and each.errno in _DISK_ERRORS for each in _walk_chain(error)
    )


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all of its causes, each once."""
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


def _explain_system_error(error: BaseException) -> WorkError | None:
    """Explain an error of the operating system by its error number or its text."""
    number = error.errno if isinstance(error, OSError) else None
    if (named := _OS_ERROR.search(str(error))) is not None:
        number = int(named[1])
    text = str(error).lower()
    by_text = ((what, hint) for pattern, what, hint in _BY_TEXT if re.search(pattern, text))
    known = _BY_ERRNO[number] if number in _BY_ERRNO else next(by_text, None)
    return None if known is None else _report(*known, error)


def _report(what: str, hint: str, error: BaseException) -> WorkError:
    temporary = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - only shown to the user
    return WorkError(what, seen=_first_line(error), hint=hint.format(temporary=temporary))


def _is_home_full() -> bool:
    """Return whether less than a MiB is free where the home folder is, which Millrace has set."""
    try:
        return shutil.disk_usage(os.environ.get("MILLRACE_HOME", ".")).free < 2**20
    except OSError:
        return False


def _explain_library_error(error: BaseException) -> WorkError | None:
    """Explain an error by the library that defines its class."""
    package = type(error).__module__.partition(".")[0]
    for packages, kind, what, hint in _BY_PACKAGE:
        if package in packages:
            if _is_home_full():  # a server on this machine says only that it failed
                return _report(*_BY_ERRNO[errno.ENOSPC], error)
            return kind(what, seen=_first_line(error), hint=hint.format(ray_logs=ray_logs()))
    return None


def _first_line(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:400]
