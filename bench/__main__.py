"""Run the benchmarks: `python -m bench [NAMES...] [--json]`."""

import json
import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import psutil
import typer
from rich.console import Console

from bench.catalog import choose_benchmarks, run_in_subprocess
from bench.report import (
    Machine,
    Result,
    load_average,
    result_as_json,
    results_table,
    this_machine,
    write_result,
)

Names = Annotated[
    list[str] | None, typer.Argument(help="Rows (P1) or modules (serving); all if left out.")
]


def main(
    names: Names = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure, print a table, and write bench/results/NAME.json; a missed goal is no failure."""
    try:
        chosen = choose_benchmarks(names or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    machine, load_at_start = this_machine(), load_average()
    results = [
        result
        for module, wanted in chosen.items()
        for result in _run_module(module, wanted, machine)
    ]
    if as_json:
        values = [result_as_json(result, machine) for result in results]
        sys.stdout.write(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    else:
        Console().print(results_table(results, machine, load_at_start))
        for result in results:
            if result.row.details:
                sys.stdout.write(f"\n{result.row.name}\n\n{result.row.details}\n")


def _run_module(module: str, wanted: tuple[str, ...], machine: Machine) -> list[Result]:
    """Run the wanted rows of a module, and write each as soon as it is measured."""
    stderr = Console(stderr=True, highlight=False)
    results = []
    others = psutil.cpu_percent(interval=1.0) / 100
    before, started = load_average(), time.monotonic()
    stderr.print(f"{module}: {', '.join(wanted)} (load {before:.1f}, others use {others:.0%})")
    for row in run_in_subprocess(module, wanted):
        after, ended = load_average(), time.monotonic()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        result = Result(row, before, after, others, ended - started, date)
        before, started = after, ended
        write_result(result, machine)
        outcome = row.error or f"{row.value:.3f} (goal {row.goal})"
        stderr.print(f"  {row.name}: {outcome}, {result.seconds:.0f} s")
        results.append(result)
    return results


if __name__ == "__main__":
    typer.run(main)
