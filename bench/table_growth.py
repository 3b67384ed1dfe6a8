"""P14: the second ingestion of a table that grew by 1%, against the first one, in time and disk."""

import statistics
import tempfile
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path

from bench.measure import Rounds, Row, measure_in_folder, measure_rows
from bench.table_size import FILE, INGEST, run_python, write_table

MILLIONS = 20
FILES = 20
ROUNDS = 2


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure P14 in homes of its own."""
    yield from measure_rows({"P14": partial(measure_in_folder, grow_table)}, wanted)


def grow_table(folder: Path) -> Row:
    """P14: write the files of the table, ingest them, add one file, and ingest again."""
    source = folder.resolve() / "in"
    source.mkdir()
    for number in range(FILES):
        file = source / f"{number:03d}.parquet"
        write_table(file, MILLIONS * 1_000_000 // FILES, seed=number)
    pipeline = source / "size.yaml"
    pipeline.write_text(FILE.replace("rows.parquet", "'*.parquet'"))
    more = source / f"{FILES:03d}.parquet"
    first, second, grown = [], [], []
    for _ in range(ROUNDS):
        more.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as home:
            variables = {"MILLRACE_HOME": str(Path(home).resolve())}
            first.append(float(run_python(["-c", INGEST, str(pipeline)], variables)))
            before = size_of(Path(home))
            write_table(more, MILLIONS * 10_000, seed=FILES)
            second.append(float(run_python(["-c", INGEST, str(pipeline)], variables)))
            grown.append(size_of(Path(home)) / before)
    times = Rounds(second, first)
    seconds, disk = statistics.median(second), statistics.median(grown)
    return Row(
        name="P14",
        what=f"second ingestion of {MILLIONS} million rows that grew by 1% ÷ the first "
        f"({seconds:.1f} and {statistics.median(first):.0f} s); disk after ÷ before {disk:.3f}",
        value=times.ratio,
        goal="≤ 0.05 or 1 s, disk ≤ 1.05",
        holds=(times.ratio <= 0.05 or seconds <= 1) and disk <= 1.05,
        samples={"first_s": first, "second_s": second, "disk": grown},
    )


def size_of(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
