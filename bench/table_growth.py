"""P14: a table that grows by 1% every night, in time and disk, with `millrace clean` after it."""

import statistics
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Rounds, Row
from bench.table_size import FILE, INGEST, run_python, write_table

MILLIONS = 20
FILES = 20
ROUNDS = 2
NIGHTS = 30
RETENTION = "retention: {snapshots: 3}"
NIGHT = f"""{INGEST}
from millrace.tasks.retention.clean import clean
began = time.perf_counter()
list(clean([load_pipeline(Path(sys.argv[1]))], installation))
print(time.perf_counter() - began)
"""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure P14 in homes of its own, and P14N, the nights after it, in the last of them."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        source = Source(folder / "in")
        source.write_first()
        rounds = [second_night(source, folder / f"home-{number}") for number in range(ROUNDS)]
        if "P14" in wanted:
            yield growth_of(rounds)
        if "P14N" in wanted:
            yield nights_of(source, folder / f"home-{ROUNDS - 1}")


@dataclass(frozen=True)
class Source:
    """The folder with the files of the table, and with the pipeline file."""

    folder: Path

    @property
    def pipeline(self) -> str:
        """Path of the pipeline file."""
        return str(self.folder / "size.yaml")

    def write_first(self) -> None:
        """Write the files of the first night."""
        self.folder.mkdir()
        for number in range(FILES):
            self.write(number, MILLIONS * 1_000_000 // FILES)
        text = FILE.replace("rows.parquet", "'*.parquet'")
        Path(self.pipeline).write_text(f"{text}\n{RETENTION}\n")

    def write(self, number: int, count: int) -> Path:
        """Write one file of rows, and return it."""
        file = self.folder / f"{number:03d}.parquet"
        write_table(file, count, seed=number)
        return file

    def write_night(self, number: int) -> Path:
        """Write the file with the new rows of a night, and return it."""
        return self.write(FILES + number, MILLIONS * 10_000)


def second_night(source: Source, home: Path) -> tuple[float, float, float]:
    """Return the seconds of a first and a second ingestion, and the disk after ÷ before."""
    variables = {"MILLRACE_HOME": str(home)}
    for file in source.folder.glob("*.parquet"):
        if int(file.stem) >= FILES:
            file.unlink()
    first = float(run_python(["-c", INGEST, source.pipeline], variables))
    before = size_of(home)
    source.write_night(0)
    second = float(run_python(["-c", INGEST, source.pipeline], variables))
    return first, second, size_of(home) / before


def growth_of(rounds: Sequence[tuple[float, float, float]]) -> Row:
    """P14: the second ingestion ÷ the first one."""
    first, second, grown = (list(values) for values in zip(*rounds, strict=True))
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


def nights_of(source: Source, home: Path) -> Row:
    """P14N: the disk after many nights with retention ÷ the disk of the first night."""
    tables = home / "tables" / "datasets"
    one_night = size_of(tables) / 1.01  # the second night has added 1% already
    cleaned, disk = [], []
    for number in range(1, NIGHTS):
        source.write_night(number)
        words = ["-c", NIGHT, source.pipeline]
        cleaned.append(float(run_python(words, {"MILLRACE_HOME": str(home)})))
        disk.append(size_of(tables) / one_night)
    return Row(
        name="P14N",
        what=f"disk of the snapshots after {NIGHTS} nights that add 1% each, with retention ÷ that "
        f"of one night (`clean` takes {statistics.median(cleaned):.1f} s)",
        value=disk[-1],
        goal="≤ 1.5",
        holds=disk[-1] <= 1.5,
        samples={"disk": disk, "clean_s": cleaned},
    )


def size_of(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
