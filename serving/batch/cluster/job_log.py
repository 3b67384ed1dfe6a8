"""What a job on a cluster tells the flow that follows it: marked lines of its log.

    millrace INFO score: 20,000/60,000 rows      a line of our log, with its level
    millrace-digits-2026-01-05-1f… {"report":…}  the outcome, marked with the job's own id

All other lines (Ray's, a traceback) are nobody's message. The outcome goes by the log and not by a
file beside the table, because the log is there wherever the Jobs API is: also for a job that may
not write its tables, and for a flow that may not read them.
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
    """A line of our log.

    Attributes:
        level: of `logging`.
        text: without a line break.
    """

    level: int
    text: str


class Teller(logging.Formatter):
    """Marks every line of a record with its level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of the log or more."""
        name = record.levelname if record.levelname in LEVELS else "INFO"
        lines = super().format(record).splitlines() or [""]
        return "\n".join(f"{MARK} {name} {line}" for line in lines)


@dataclass
class Log:
    """The log of a job, of which each line is told once, however often the whole is fetched.

    Attributes:
        told: characters of it that were told.
    """

    told: int = 0

    def news(self, text: str) -> list[Line]:
        """Return our lines that are whole and were not told yet.

        Args:
            text: the log from its beginning; empty where it could not be had.
        """
        end = text.rfind("\n") + 1
        fresh, self.told = text[self.told : end], max(self.told, end)
        return [line for each in fresh.splitlines() if (line := _line(each)) is not None]


def tell_on_stdout() -> None:
    """Send the lines of the logger `millrace` to stdout, marked."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Teller("%(message)s"))
    log = logging.getLogger("millrace")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [handler]


def outcome_line(submission: str, outcome: Mapping[str, Any]) -> str:
    """Return a job's outcome as a line of its log.

    Args:
        submission: the job's id, which ends in chance.
        outcome: ready for JSON.
    """
    return f"{submission} {json.dumps(outcome)}"


def outcome_in(text: str, submission: str) -> dict[str, Any] | None:
    """Return the outcome that a log tells; None where there is none."""
    mark = f"{submission} {{"
    found = [line for line in text.splitlines() if line.startswith(mark)]
    if not found:
        return None
    outcome: dict[str, Any] = json.loads(found[-1].removeprefix(f"{submission} "))
    return outcome


def _line(line: str) -> Line | None:
    mark, _, rest = line.partition(" ")
    level, _, text = rest.partition(" ")
    return Line(LEVELS[level], text) if mark == MARK and level in LEVELS else None
