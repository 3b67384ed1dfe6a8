"""`make soak`, third part: a large batch job under a reader's eyes, and jobs that race.

    python -m tests.chaos.batch_crowd [ROWS] [JOBS]

The tabular example is trained and scores so many rows, twice, while a reader looks at its table 50
times a second: it must see nothing, or one job's commit whole. Then jobs of different versions go
for one partition at the same moment: one must win, and the others say so. A short form is a test.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import deltalake
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from millrace.models.common.errors import MillraceError
from millrace.serving.batch.commit import Partition
from tests.chaos.batch_kills import DATE, answer, prepare
from tests.integration.conftest import make_home

LOOK_SECONDS = 1 / 50
WAIT_SECONDS = 300.0
EXAMPLE = Path(__file__).parents[2] / "examples/tabular.yaml"
ROWS_AT_ONCE = 500_000


@dataclass
class Reader:
    """Looks at a table all the time, as a reader of Delta tables does.

    Attributes:
        table: where it is, or will be.
        seen: rows and jobs of each look, and how often it was that.
    """

    table: Path
    seen: Counter[tuple[int, tuple[str, ...]]] = field(default_factory=Counter)
    _ended: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._looks)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _looks(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            self.seen[self._look()] += 1
            self._ended.wait(max(began + LOOK_SECONDS - time.monotonic(), 0))

    def _look(self) -> tuple[int, tuple[str, ...]]:
        if not deltalake.DeltaTable.is_deltatable(str(self.table)):
            return 0, ()
        table = deltalake.DeltaTable(self.table)
        files = [Path(uri) for uri in table.file_uris()]
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        return rows, tuple(sorted({file.parent.name for file in files}))


def race(folder: Path, jobs: int) -> list[str]:
    """Let jobs of different versions reach their commit, then go; return what each came to.

    Args:
        folder: that `prepare` filled.
        jobs: how many.
    """
    word = [sys.executable, "-m", "tests.chaos.batch_crowd", "job", str(folder), str(jobs)]
    processes = [
        subprocess.Popen([*word, str(n)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(jobs)
    ]
    ends = [process.communicate() for process in processes]
    assert all(process.returncode == 0 for process in processes), ends
    return [out.strip().splitlines()[-1] for out, _ in ends]


def _job(folder: Path, jobs: int, number: int) -> None:
    """Run one of the jobs of a race."""
    commit = vars(Partition)["commit"]

    def together(partition: Partition, *given: Any, **named: Any) -> int:
        (folder / f"ready{number}").touch()
        deadline = time.monotonic() + WAIT_SECONDS
        while len(list(folder.glob("ready*"))) < jobs and time.monotonic() < deadline:
            time.sleep(0.001)
        version: int = commit(partition, *given, **named)
        return version

    Partition.commit = together  # type: ignore[method-assign]
    try:
        answer(folder, number)
        print("won")  # noqa: T201
    except MillraceError as error:
        print(error.what)  # noqa: T201
    finally:
        (folder / f"ready{number}").touch()  # one that failed before is not waited for


@dataclass(frozen=True)
class Measured:
    """What a large job took.

    Attributes:
        report: what the command said, as JSON.
        peak: bytes of memory of all its processes together, shared memory once.
        seen: by the reader.
    """

    report: dict[str, Any]
    peak: int
    seen: Counter[tuple[int, tuple[str, ...]]]


def large(folder: Path, rows: int) -> list[Measured]:
    """Score rows with the tabular example, then again with another parameter."""
    home = make_home(folder / "home")
    pipeline = yaml.safe_load(EXAMPLE.read_text())
    source = EXAMPLE.parent / pipeline["dataset"]["source"]
    pipeline["dataset"]["source"] = str(source)
    file, given = folder / "tabular.yaml", folder / "rows.parquet"
    file.write_text(yaml.safe_dump(pipeline | {"promotion": "auto"}))
    trained = home.run("run", str(file))
    assert trained.code == 0, trained.err
    _write(source, given, rows)
    found = []
    for size in (1024, 2048):
        batch = {"key": ["id"], "batch_size": size}
        file.write_text(yaml.safe_dump(pipeline | {"promotion": "auto", "batch": batch}))
        with Reader(home.path / "tables/predictions/tabular") as reader:
            words = ("score", str(file), "--input", str(given), "--date", DATE, "--json")
            with home.start(*words) as process:
                peak = _peak(process)
                out, err = process.communicate()
        assert process.returncode == 0, err
        found.append(Measured(json.loads(out), peak, reader.seen))
    return found


def _peak(process: "subprocess.Popen[str]") -> int:
    """Return the most memory that a process and its children had while it ran."""
    peak, parent = 0, psutil.Process(process.pid)
    while process.poll() is None:
        total = 0
        with suppress(psutil.Error):
            for each in (parent, *parent.children(recursive=True)):
                with suppress(psutil.Error):
                    total += each.memory_full_info().pss
        peak = max(peak, total)
        time.sleep(0.5)
    return peak


def _write(source: Path, given: Path, rows: int) -> None:
    """Write rows of the example, drawn again and again, with a number each."""
    held = pyarrow.csv.read_csv(source)
    chance = np.random.default_rng(0)
    schema = held.schema.append(pa.field("id", pa.int64()))
    with pq.ParquetWriter(given, schema) as writer:
        for first in range(0, rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows - first)
            part = held.take(pa.array(chance.integers(0, len(held), count)))
            numbers = pa.array(np.arange(first, first + count))
            writer.write_table(part.append_column("id", numbers), row_group_size=100_000)


def main(words: list[str]) -> None:
    """Run a job of a race, or all of it."""
    if words[:1] == ["job"]:
        _job(Path(words[1]), int(words[2]), int(words[3]))
        return
    rows, jobs = (int(word) for word in [*words, *("5000000", "8")[len(words) :]])
    with tempfile.TemporaryDirectory() as folder:
        for done in large(Path(folder), rows):
            jobs_seen = {names for _, names in done.seen}
            assert {count for count, _ in done.seen} <= {0, rows}, done.seen
            assert all(len(names) <= 1 for names in jobs_seen), done.seen
            print(  # noqa: T201
                f"{rows:,} rows in {done.report['seconds']:.0f} s, at most "
                f"{done.peak / 2**30:.1f} GiB; {done.seen.total():,} looks saw nothing or all"
            )
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), 20_000)
        ends = Counter(race(Path(folder), jobs))
        assert ends["won"] == 1, ends
        print(f"{jobs} jobs for one partition: {dict(ends)}")  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
