"""The benchmarks' results: a table for people, a JSON file for each row."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.machine import Machine
from bench.row import Row

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Result:
    """A row and the circumstances of its measurement.

    Attributes:
        row: what was measured.
        load_before: load average of the last minute before it.
        load_after: the same after it.
        others_cpu: share of all cores that others used in the second before its module began.
        seconds: how long it took.
        date: when it was done, ISO 8601 with the timezone.
    """

    row: Row
    load_before: float
    load_after: float
    others_cpu: float
    seconds: float
    date: str


def as_json(result: Result, machine: Machine) -> dict[str, Any]:
    """Return JSON-ready values; a value that was not measured is null."""
    row = asdict(result.row)
    row["value"] = None if math.isnan(result.row.value) else result.row.value
    return {
        **row,
        "date": result.date,
        "seconds": round(result.seconds, 1),
        "load_average": {"before": result.load_before, "after": result.load_after},
        "others_cpu": round(result.others_cpu, 2),
        "machine": asdict(machine),
    }


def write(result: Result, machine: Machine, folder: Path = RESULTS) -> Path:
    """Write a result to `folder/NAME.json`, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.row.name}.json"
    file.write_text(json.dumps(as_json(result, machine), indent=1, ensure_ascii=False) + "\n")
    return file


def is_busy(load_at_start: float, machine: Machine) -> bool:
    """Tell whether others used the machine when the benchmarks began."""
    return load_at_start > machine.cores


def table(results: Sequence[Result], machine: Machine, load_at_start: float) -> Table:
    """Return the results as a table; its caption says when the machine was busy.

    Args:
        results: one for each line.
        machine: what they were measured on.
        load_at_start: load average before the first of them.
    """
    shown = Table(
        title=f"{machine.processor}, {machine.cores} cores",
        caption=_caption(load_at_start, machine),
    )
    for column in ("", "what", "value", "goal", "holds", "load", "others"):
        numeric = column in ("value", "load", "others")
        shown.add_column(column, justify="right" if numeric else "left")
    for result in results:
        shown.add_row(*_cells(result))
    return shown


def _cells(result: Result) -> tuple[str, ...]:
    row = result.row
    load = f"{result.load_before:.1f} → {result.load_after:.1f}"
    others = f"{result.others_cpu:.0%}"
    if row.error is not None:
        return (row.name, escape(row.error), "—", row.goal, "[red]failed[/]", load, others)
    holds = "[green]yes[/]" if row.holds else "[red]no[/]"
    return (row.name, escape(row.what), f"{row.value:.3f}", row.goal, holds, load, others)


def _caption(load_at_start: float, machine: Machine) -> str | None:
    if not is_busy(load_at_start, machine):
        return None
    return (
        f"The load average was {load_at_start:.1f} on {machine.cores} cores before the first row: "
        "others used this machine, and the figures are less certain."
    )
