"""What the user sees: tables and JSON on stdout; progress, warnings and errors on stderr."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from millrace.models.common.errors import MillraceError
from millrace.models.common.printable import guard_logging, redact, safe


def set_up_logging() -> None:
    """Send the lines of the logger `millrace` to stderr: short on a terminal, dated in a log."""
    guard_logging()
    log = logging.getLogger("millrace")
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


def native_stderr_to(log: Path) -> None:
    """Send what native code and child processes write to file descriptor 2 to a log.

    Python's `sys.stderr` goes on to where it went. Ray's C++ core writes warnings of its own there
    that say nothing to a user.
    """
    sys.stderr.flush()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    with log.open("ab") as output:
        log.chmod(0o600)
        os.dup2(output.fileno(), 2)


def stdout_for_results() -> AbstractContextManager[object]:
    """Send what libraries print to stderr while the block runs; stdout is for outcomes alone."""
    return redirect_stdout(sys.stderr)


def print_table(
    title: str, head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: int = 0
) -> None:
    """Print a table; columns from `numbers` on are aligned to the right if it is not 0."""
    heading = Text(safe(title), style="bold")
    table = Table(title=heading, title_justify="left", header_style="bold")
    for position, name in enumerate(head):
        right = bool(numbers) and position >= numbers
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe(str(cell))) for cell in row))
    Console(soft_wrap=False).print(table)


def print_hint(text: str, label: str = "next") -> None:
    """Print the next step, or another line of that kind, on stderr."""
    Console(stderr=True, highlight=False).print(Text(safe(f"{label}: {text}"), style="dim"))


def print_piece(text: str) -> None:
    """Print a piece of a text that is not over yet."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(plain(value), indent=2, default=str) + "\n")


def plain(value: Any) -> Any:
    """Return dataclasses, errors, paths and tuples as what JSON knows."""
    if isinstance(value, MillraceError):
        return value.as_dict()
    if hasattr(value, "as_json"):
        return plain(value.as_json())
    if is_dataclass(value) and not isinstance(value, type):
        shallow = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return {name: plain(each) for name, each in shallow.items()}
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, str | Path):
        return redact(str(value))
    return value


def print_error(error: MillraceError, *, as_json: bool) -> None:
    """Print an error: on stdout as JSON, else on stderr."""
    if as_json:
        print_json(error.as_dict())
        return
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    first, *rest = str(error).splitlines()
    console.print(Text("error: ", style="bold red") + Text(first))
    for line in rest:
        console.print(Text(line))
