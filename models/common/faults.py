"""An exception that nobody expected, as an error that names its trace: the fault of one thing."""

import traceback
from datetime import datetime
from pathlib import Path
from secrets import token_hex

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.printable import safe
from millrace.models.common.private_files import replace_private


def unexpected(what: str, error: Exception, logs: Path | None) -> MillraceError:
    """Return the error of a fault; its whole trace goes to a file, where there is a folder for it.

    Args:
        what: what failed, as a sentence without a full stop.
        error: what was raised; an error of ours is returned as it is.
        logs: the folder.
    """
    if isinstance(error, MillraceError):
        return error
    seen = f"{type(error).__name__}: {error}".rstrip(": ")
    return WorkError(what, seen=seen, hint=f"report it with {written_trace(error, logs)}")


def written_trace(error: Exception, logs: Path | None) -> str:
    """Write the trace of an exception, and return in words where it is."""
    if logs is None:
        return "its trace"
    path = logs / f"error-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        replace_private(path, safe("".join(traceback.format_exception(error))))
    except OSError as fault:
        return f"its trace, which could not be kept ({fault.strerror})"
    return f"its trace in {path}"
