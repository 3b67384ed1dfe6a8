"""The results of the benchmarks: a table for people, and a JSON file for each row."""

import json
import math
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from bench.measure import Row
from millrace.models.common import hardware

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *("millrace", "torch", "ray", "mlflow", "prefect", "onnxruntime", "nvidia-pytriton"),
    *("tritonclient", "deltalake", "numpy"),
)


@dataclass(frozen=True)
class Machine:
    """The machine and what is installed on it.

    Attributes:
        system: operating system and architecture.
        processor: the processor's name.
        flags: its instruction sets that choose kernels.
        cores: cores that this process may use.
        memory_gib: memory, GiB.
        python: version of Python.
        packages: versions of the installed packages.
    """

    system: str
    processor: str
    flags: tuple[str, ...]
    cores: int
    memory_gib: float
    python: str
    packages: dict[str, str]


def this_machine() -> Machine:
    """Describe the machine that this runs on."""
    found = hardware.this_machine()
    packages = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            packages[package] = version(package)
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=found.processor,
        flags=found.flags,
        cores=found.cores,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        python=platform.python_version(),
        packages=packages,
    )


def load_average() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


@dataclass(frozen=True)
class Result:
    """A row and the circumstances of its measurement.

    Attributes:
        row: what was measured.
        load_before: load average of the last minute before it.
        load_after: load average of the last minute after it.
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


def result_as_json(result: Result, machine: Machine) -> dict[str, Any]:
    """Return JSON-ready values; a value that was not measured is null."""
    value = None if math.isnan(result.row.value) else result.row.value
    return {
        **asdict(result.row),
        "value": value,
        "date": result.date,
        "seconds": round(result.seconds, 1),
        "load_average": {"before": result.load_before, "after": result.load_after},
        "others_cpu": round(result.others_cpu, 2),
        "machine": asdict(machine),
    }


def write_result(result: Result, machine: Machine, folder: Path = RESULTS) -> Path:
    """Write a result to `folder/NAME.json`, and return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{result.row.name}.json"
    values = result_as_json(result, machine)
    file.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return file


def is_busy(load_at_start: float, machine: Machine) -> bool:
    """Return whether others used the machine when the benchmarks began."""
    return load_at_start > machine.cores


def results_table(results: Sequence[Result], machine: Machine, load_at_start: float) -> Table:
    """Return the results as a table; its caption says if the machine was busy.

    Args:
        results: one for each line.
        machine: what they were measured on.
        load_at_start: load average before the first of them.
    """
    caption = (
        f"The load average was {load_at_start:.1f} on {machine.cores} cores before the first row: "
        "others used this machine, and the figures are less certain."
    )
    table = Table(
        title=f"{machine.processor}, {machine.cores} cores",
        caption=caption if is_busy(load_at_start, machine) else None,
    )
    for column in ("", "what", "value", "goal", "holds", "load", "others"):
        numeric = column in ("value", "load", "others")
        table.add_column(column, justify="right" if numeric else "left")
    for result in results:
        table.add_row(*_cells_of(result))
    return table


def _cells_of(result: Result) -> tuple[str, ...]:
    row = result.row
    load = f"{result.load_before:.1f} → {result.load_after:.1f}"
    others = f"{result.others_cpu:.0%}"
    if row.error is not None:
        return (row.name, escape(row.error), "—", row.goal, "[red]failed[/]", load, others)
    holds = "[green]yes[/]" if row.holds else "[red]no[/]"
    return (row.name, escape(row.what), f"{row.value:.3f}", row.goal, holds, load, others)
