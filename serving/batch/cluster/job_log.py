"""What a job on a cluster reports to the flow that follows it: marked lines of its log.

    millrace INFO score: 20,000/60,000 rows      a line of Millrace's log, with its level
    millrace-digits-2026-01-05-1f… {"report":…}  the outcome, marked with the job's own id

All other lines (Ray's, a traceback) are ignored. The outcome is in the log and not in a file beside
the table, because the log is available wherever the Jobs API is, even if the job cannot write its
tables or the flow cannot read them.
"""

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MARK = "millrace"
LEVELS = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")}


@dataclass(frozen=True)
class Line:
    """A line of Millrace's log.

    Attributes:
        level: a level of `logging`.
        text: the text, without a line break.
    """

    level: int
    text: str


class MarkedFormatter(logging.Formatter):
    """Marks every line of a record with its level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one or more lines of the log."""
        name = record.levelname if record.levelname in LEVELS else "INFO"
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"{MARK} {name} {line}" for line in lines)


@dataclass
class Log:
    """The log of a job: returns each line once, although the log is always fetched as a whole.

    Attributes:
        position: number of characters that were already read.
    """

    position: int = 0

    def read_new_lines(self, text: str) -> list[Line]:
        """Return Millrace's complete lines that were not read yet.

        Args:
            text: the log from its beginning; empty if it could not be fetched.
        """
        end = text.rfind("\n") + 1
        fresh, self.position = text[self.position : end], max(self.position, end)
        return [line for each in fresh.splitlines() if (line := _parse_line(each)) is not None]


def log_to_stdout() -> None:
    """Send the lines of the logger `millrace` to stdout, marked."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(MarkedFormatter("%(message)s"))
    log = logging.getLogger("millrace")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [handler]


def format_outcome(submission: str, outcome: Mapping[str, Any]) -> str:
    """Return a job's outcome as a line for its log.

    Args:
        submission: the job's id, which ends in random digits.
        outcome: the outcome, ready for JSON.
    """
    return f"{submission} {json.dumps(outcome)}"


def find_outcome(text: str, submission: str) -> dict[str, Any] | None:
    """Return the outcome of a job from its log; None if the log has no outcome."""
    mark = f"{submission} {{"
    found = [line for line in text.splitlines() if line.startswith(mark)]
    if not found:
        return None
    outcome: dict[str, Any] = json.loads(found[-1].removeprefix(f"{submission} "))
    return outcome


def _parse_line(line: str) -> Line | None:
    mark, _, rest = line.partition(" ")
    level, _, text = rest.partition(" ")
    return Line(LEVELS[level], text) if mark == MARK and level in LEVELS else None
