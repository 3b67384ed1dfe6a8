"""The errors that Millrace raises.

    MillraceError            exit code 1
    ├── InputError           exit code 2: the user's file, data, option or setting is wrong
    └── WorkError            exit code 1: the work failed, terminally
        └── TransientError   exit code 1: the work failed and may succeed if tried again
            └── SilentError  exit code 1: a service accepts connections and does not answer

An error is raised from values: what failed, what was seen, what is valid and what to do next.
The text is put together here, so that every error reads alike, and the values survive pickling
between Ray and Prefect processes. Passwords in addresses and control characters are removed.
"""

import traceback
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import ClassVar

from millrace.models.common.printable import safe
from millrace.models.common.private_files import replace_private

MAX_NAMED = 5
"""Largest number of names that a hint suggests."""


class MillraceError(Exception):
    """Base of every error that a user is meant to read.

    Args:
        what: what failed, as a sentence without a full stop.
        seen: the value that was found.
        valid: what would have been accepted.
        hint: what to do next.
    """

    exit_code: ClassVar[int] = 1
    transient: ClassVar[bool] = False

    def __init__(
        self, what: str, *, seen: object = None, valid: object = None, hint: str | None = None
    ) -> None:
        what = safe(what)
        super().__init__(what)
        self.what = what
        self.seen = None if seen is None else safe(str(seen))
        self.valid = None if valid is None else safe(str(valid))
        self.hint = None if hint is None else safe(hint)

    def __str__(self) -> str:
        """Return the whole message, with a labelled line for each value."""
        labelled = (("seen", self.seen), ("valid", self.valid), ("next", self.hint))
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in labelled if text)])

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by values: the default loses the keyword arguments."""
        return (_rebuild, (type(self), self.what, self.seen, self.valid, self.hint))

    def as_dict(self) -> dict[str, object]:
        """Return the error as JSON-ready values for `--json`."""
        return {
            "error": type(self).__name__,
            "what": self.what,
            "seen": self.seen,
            "valid": self.valid,
            "next": self.hint,
            "exit_code": self.exit_code,
        }


class InputError(MillraceError):
    """The user's file, data, option or setting is wrong; running again will not help."""

    exit_code = 2


class WorkError(MillraceError):
    """The work failed for a reason that is not the user's input."""


class TransientError(WorkError):
    """The work failed for a reason that may pass: a service that is starting, a lost connection."""

    transient = True


class SilentError(TransientError):
    """A service accepts connections and does not answer.

    No step retries after this error, because the check has already waited for the answer.
    """


def _rebuild(
    kind: type[MillraceError], what: str, seen: str | None, valid: str | None, hint: str | None
) -> MillraceError:
    return kind(what, seen=seen, valid=valid, hint=hint)


def closest(word: str, known: list[str] | tuple[str, ...]) -> str | None:
    """Return the known word nearest to `word`; None if no known word is similar."""
    return next(iter(get_close_matches(word, known, n=1, cutoff=0.5)), None)


def nearest(word: str, known: list[str] | tuple[str, ...]) -> str | None:
    """Return a hint that suggests known words; None if no known word is similar.

    The hint has the known words that begin with `word` if there are several, else the nearest word.
    """
    longer = [each for each in known if word and each.startswith(word)][:MAX_NAMED]
    close = longer if len(longer) > 1 else [each for each in [closest(word, known)] if each]
    return f"did you mean {' or '.join(map(repr, close))}?" if close else None


def missing_file(
    path: Path, what: str, start: str = "the current folder", endings: tuple[str, ...] = ("",)
) -> InputError:
    """Return the error for a file that does not exist, with the nearest name in its folder.

    Args:
        path: the file.
        what: what the file is.
        start: where relative paths start.
        endings: the endings of the names that are listed.
    """
    folder = path.parent
    entries = folder.iterdir() if folder.is_dir() else ()
    names = sorted(entry.name for entry in entries if entry.name.endswith(endings))
    is_lost = not folder.is_dir()
    hint = f"the folder {folder} does not exist either" if is_lost else nearest(path.name, names)
    return InputError(
        f"{what} does not exist",
        seen=path,
        valid=f"in {folder}: {list_names(names)}" if names else None,
        hint=hint or f"relative paths start from {start}",
    )


def list_names(names: Sequence[str], most: int = 40) -> str:
    """Return at most `most` names, separated by commas, and how many more there are."""
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def unexpected_error(what: str, error: Exception, logs: Path | None) -> MillraceError:
    """Return an error to show for an unexpected exception, whose stack trace goes to a file.

    Args:
        what: what failed, as a sentence without a full stop.
        error: the exception; a MillraceError is returned as it is.
        logs: folder for the file with the stack trace; None: write no file.
    """
    if isinstance(error, MillraceError):
        return error
    seen = f"{type(error).__name__}: {error}".rstrip(": ")
    return WorkError(what, seen=seen, hint=f"report this error with {write_trace(error, logs)}")


def write_trace(error: Exception, logs: Path | None) -> str:
    """Write the stack trace of an exception to a file; return a phrase that says where it is."""
    if logs is None:
        return "its stack trace"
    path = logs / f"error-{datetime.now():%Y%m%d-%H%M%S}-{token_hex(2)}.log"
    try:
        logs.mkdir(parents=True, exist_ok=True)
        replace_private(path, safe("".join(traceback.format_exception(error))))
    except OSError as fault:
        return f"its stack trace, which could not be written ({fault.strerror})"
    return f"its stack trace in {path}"
