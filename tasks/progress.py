"""Progress of long work: a bar on a terminal, plain lines in a log, always on stderr."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from millrace.models.common.slow_step import repeat_while

log = logging.getLogger("millrace")

_LINE_SECONDS, _LOOK_SECONDS = 5.0, 0.5


@dataclass
class Bar:
    """The progress of one task.

    Attributes:
        title: name of the task.
        total: number of units to do; None if it is not known.
        unit: name of the units.
    """

    title: str
    total: int | None
    unit: str
    _bar: Progress | None = None
    _last: float = field(default_factory=time.monotonic)
    _started: float = field(default_factory=time.monotonic)
    _done: int = 0
    _logged: tuple[int, str] | None = None

    def __post_init__(self) -> None:
        self._task = (
            self._bar.add_task(self.title, total=self.total, note="") if self._bar else None
        )

    def update(self, done: int, note: str = "") -> None:
        """Show that `done` units are done, and a note beside them."""
        self._done = done
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, note=note)
            return
        if not done or (done, note) == self._logged:
            return
        if time.monotonic() - self._last >= _LINE_SECONDS or done == self.total:
            self._logged = done, note
            self._log(note)

    def report_silence(self) -> None:
        """Log how long the task takes so far, if nothing was logged for some seconds."""
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._log(f"{time.monotonic() - self._started:.0f} s so far")

    def _log(self, note: str) -> None:
        self._last = time.monotonic()
        of_total = f"/{self.total:,}" if self.total else ""
        log.info("%s", f"{self.title}: {self._done:,}{of_total} {self.unit}  {note}".rstrip())


class _NoteColumn(ProgressColumn):
    """The note of a task, of which a narrow terminal shows the beginning."""

    def render(self, task: Task) -> Text:
        """Return the note."""
        return Text(str(task.fields["note"]), "dim", no_wrap=True, overflow="ellipsis")


@contextmanager
def bar(title: str, total: int | None, unit: str) -> Iterator[Bar]:
    """Show progress while the block runs, and a line when it is done."""
    started = time.monotonic()
    if not sys.stderr.isatty():
        plain = Bar(title, total, unit)
        with repeat_while(_LOOK_SECONDS, plain.report_silence):
            yield plain
    else:
        columns = (
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=24, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            _NoteColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
            yield Bar(title, total, unit, shown)
    log.info("%s: done in %.1f s", title, time.monotonic() - started)


def recovery(done: int, unit: str) -> str:
    """Return in words where training resumed after a failure.

    Args:
        done: epochs or steps that the checkpoint includes; 0 if there is no checkpoint.
        unit: epoch or step.
    """
    if done == 0:
        return "restarted from the beginning: there was no checkpoint yet"
    return f"resumed from the checkpoint of {unit} {done}"
