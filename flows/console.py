"""Output for the user: tables and JSON on stdout; progress, warnings and errors on stderr."""

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from millrace.models.common.errors import MillraceError
from millrace.models.common.log_files import hold_log
from millrace.models.common.printable import guard_logging, redact, safe

log = logging.getLogger("millrace")


class WarnOnce:
    """Logs a warning when its reason changes, not each time that the reason is reported again.

    Args:
        message: the warning, with a `%s` for the reason.
    """

    def __init__(self, message: str) -> None:
        self._message, self._last = message, ""

    def report(self, reason: str) -> None:
        """Warn of a new reason; an empty reason means that the problem is over."""
        if reason and reason != self._last:
            log.warning(self._message, reason)
        self._last = reason


def first_line(error: BaseException) -> str:
    """Return the type of an error and the first line of its message, for a log."""
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {line}"[:300]


def set_up_logging() -> None:
    """Send the lines of the logger `millrace` to stderr: short on a terminal, dated in a log."""
    guard_logging()
    log.setLevel(logging.INFO)
    log.propagate = False
    if log.handlers:
        return
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(
            console=Console(stderr=True), show_path=False, log_time_format="%H:%M:%S"
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)


def redirect_native_stderr(file: Path) -> None:
    """Redirect file descriptor 2, to which native code and child processes write, to a log file.

    Python's `sys.stderr` keeps its destination. File descriptor 2 is redirected, because Ray's C++
    core writes warnings to it that mean nothing to a user.
    """
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with file.open("ab") as output:
        file.chmod(0o600)
        hold_log(output.fileno())
        os.dup2(output.fileno(), 2)


def reserve_stdout() -> AbstractContextManager[object]:
    """Redirect stdout, on which libraries print, to stderr while the block runs.

    Only results belong on stdout.
    """
    return redirect_stdout(sys.stderr)


def print_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0
) -> None:
    """Print a table; columns from index `numbers` on are right-aligned if `numbers` > 0."""
    heading = Text(safe(title), style="bold")
    table = Table(title=heading, title_justify="left", header_style="bold")
    for position, name in enumerate(head):
        right = bool(numbers) and position >= numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(str(cell))) for cell in row))
    Console(soft_wrap=False).print(table)


def print_hint(text: str, label: str = "next") -> None:
    """Print the next step, or another labelled line, on stderr."""
    Console(stderr=True, highlight=False).print(Text(safe(f"{label}: {text}"), style="dim"))


def print_line(line: str) -> None:
    """Print a line of a result."""
    sys.stdout.write(safe(line) + "\n")


def print_piece(text: str) -> None:
    """Print a part of a text without ending the line."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(to_json_value(value), indent=2, default=str) + "\n")


def print_json_line(value: object) -> None:
    """Print a value as one line of JSON, at once."""
    sys.stdout.write(json.dumps(to_json_value(value), default=str) + "\n")
    sys.stdout.flush()


def to_json_value(value: Any) -> Any:
    """Convert dataclasses, errors, paths and tuples to the types of JSON, without passwords.

    Infinity and NaN, which JSON does not have, become null.
    """
    if isinstance(value, MillraceError):
        return value.as_dict()
    if hasattr(value, "as_json"):
        return to_json_value(value.as_json())
    if is_dataclass(value) and not isinstance(value, type):
        names = value.__dataclass_fields__
        return {name: to_json_value(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(name): to_json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    if isinstance(value, str | Path):
        return redact(str(value))
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_error(error: MillraceError, *, as_json: bool) -> None:
    """Print an error: with `as_json` as JSON on stdout, otherwise as text on stderr."""
    if as_json:
        print_json(error.as_dict())
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    first, *rest = str(error).splitlines()
    console.print(Text("error: ", style="bold red") + Text(first))
    for line in rest:
        console.print(Text(line))


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Exit with an error message, not a stack trace, if the block raises a `MillraceError`."""
    try:
        yield
    except MillraceError as error:
        print_error(error, as_json=False)
        sys.exit(error.exit_code)
