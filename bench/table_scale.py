"""P13: time and memory of `millrace run` as the table grows: 1, 5 and 20 million rows."""

import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.measure import Row, measure_rows
from bench.memory import Sample
from bench.table_size import COLUMNS, FILE, TimedRun, run_pipeline, write_table

MILLIONS = (1, 5, 20)
GOAL_GIB = 4
LINEAR = 1.1
"""Largest time per row at the largest table ÷ that at the one before; above it is noise."""
GIB = 2**30
SHOWN = 12


@dataclass(frozen=True)
class ScaleRun:
    """A run of the pipeline on a table.

    Attributes:
        millions: rows of the table, in millions.
        timed: its seconds.
    """

    millions: int
    timed: TimedRun

    @property
    def peak(self) -> Sample:
        """The memory when it was largest."""
        return max(self.timed.peaks.values(), key=lambda sample: sample.total)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure P13 in homes of its own."""
    yield from measure_rows({"P13": partial(scale_table, MILLIONS)}, wanted)


def scale_table(millions: Sequence[int]) -> Row:
    """P13: run the pipeline on tables of so many million rows, one after the other."""
    runs = [run_table(each) for each in millions]
    largest, smaller = runs[-1], runs[-2]
    per_row = [each.timed.work / each.millions for each in (largest, smaller)]
    peaks = [each.peak.total / GIB for each in runs]
    steps = {f"{step}_s": [each.timed.steps[step] for each in runs] for step in largest.timed.steps}
    ratio = per_row[0] / per_row[1]
    return Row(
        name="P13",
        what=f"`run` of {', '.join(map(str, millions))} million rows × {COLUMNS + 1}: time per row "
        f"of the largest ÷ that of the one before; memory (PSS of all processes) "
        f"{', '.join(f'{peak:.2f}' for peak in peaks)} GiB",
        value=ratio,
        goal=f"≤ {LINEAR}, memory ≤ {GOAL_GIB} GiB",
        holds=ratio <= LINEAR and max(peaks) <= GOAL_GIB,
        samples={
            "millions": [*map(float, millions)],
            "work_s": [each.timed.work for each in runs],
            "start_s": [each.timed.start for each in runs],
            **steps,
            "peak_gib": peaks,
            "shared_gib": [each.peak.shared / GIB for each in runs],
        },
        details=describe_peaks(largest),
    )


def run_table(millions: int) -> ScaleRun:
    """Write a table, run the pipeline on it in a new home, and remove both."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        write_table(folder / "rows.parquet", millions * 1_000_000)
        (folder / "size.yaml").write_text(FILE)
        return ScaleRun(millions, run_pipeline(folder, folder / "home", with_memory=True))


def describe_peaks(run: ScaleRun) -> str:
    """Return the memory of each step at its peak, by process, as a list in Markdown."""
    lines = [f"Memory at {run.millions} million rows, GiB:", ""]
    for step, sample in run.timed.peaks.items():
        shared = sample.shared / GIB
        lines.append(f"- {step}: {sample.total / GIB:.2f}, of it shared memory {shared:.2f}")
        ordered = sorted(sample.processes.items(), key=lambda each: -each[1])
        lines += [f"    - {size / GIB:.2f} {name}" for name, size in ordered[:SHOWN]]
    return "\n".join(lines)


if __name__ == "__main__":
    row = scale_table([int(word) for word in sys.argv[1:]] or MILLIONS)
    sys.stdout.write(f"{row.what}\n{row.value:.3f} ({row.goal})\n{row.samples}\n{row.details}\n")
