"""P12: a large table through the whole pipeline, against plain programs for the same rows.

`millrace run` in a home of its own takes turns with `plain_table.py`; both read the same Parquet
file. The start of `run` until its first row is taken off. Ingestion alone takes turns with DuckDB,
which copies the file with a hash of each row.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Rounds, Row, failed_row, measure_rows
from bench.memory import MemorySampler, Sample
from millrace.models.common.errors import WorkError

MILLIONS = 5
COLUMNS = 19  # beside the target
PART = 250_000
ROUNDS = 2
TOOLS = ("duckdb==2.0.1", "polars==2.1.0", "polars-runtime-32==2.1.0")
FOLDER = Path(__file__).parent / ".tables"
PLAIN = Path(__file__).with_name("plain_table.py")
FILE = """
name: size
dataset:
  source: rows.parquet
  target: y
  columns: {y: {type: category}}
training: {epochs: 1}
"""
DONE = re.compile(r"(ingest|train|export): done in ([\d.]+) s")
COPY = """
import sys, time, duckdb
began = time.perf_counter()
rows = duckdb.sql(f"select * from '{sys.argv[1]}'")
hashed = f"hash({', '.join(rows.columns)}) as row_hash"
duckdb.sql(f"copy (select *, {hashed} from '{sys.argv[1]}') to '{sys.argv[2]}' (format parquet)")
print(time.perf_counter() - began)
"""
INGEST = """
import sys, time
from pathlib import Path
from millrace.flows import settings, tool_variables
installation = tool_variables.apply(settings.load()).installation()
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.ingest import ingest
began = time.perf_counter()
ingest(load_pipeline(Path(sys.argv[1])), installation)
print(time.perf_counter() - began)
"""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Write the table, and measure the wanted rows on it."""
    names = ("P12", "P12I", "P12E")
    try:
        tools = install_tools()
    except WorkError as error:
        yield from (failed_row(name, str(error)) for name in names if name in wanted)
        return
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        write_table(folder / "rows.parquet", MILLIONS * 1_000_000)
        (folder / "size.yaml").write_text(FILE)
        yield from measure_rows({"P12I": partial(beside_duckdb, folder, tools)}, wanted)
        if {"P12", "P12E"} & set(wanted):
            yield from (each for each in whole_run(folder, tools) if each.name in wanted)


def write_table(file: Path, count: int, seed: int = 0) -> None:
    """Write a Parquet file of float64 columns with three decimals and a target of two classes."""
    generator = np.random.default_rng(seed)
    fields = [(f"x{number}", pa.float64()) for number in range(COLUMNS)]
    with pq.ParquetWriter(file, pa.schema([*fields, ("y", pa.int64())])) as writer:
        for start in range(0, count, PART):
            size = min(PART, count - start)
            x = generator.normal(size=(size, COLUMNS)).round(3)
            noise = generator.normal(0, 0.5, size)
            target = (x[:, 0] + x[:, 1] * x[:, 2] + noise > 0).astype(np.int64)
            columns = {f"x{number}": x[:, number] for number in range(COLUMNS)}
            writer.write_table(pa.table({**columns, "y": target}))


def install_tools(folder: Path = FOLDER) -> Path:
    """Return the folder with Polars and DuckDB; they are installed if they are missing.

    Raises:
        WorkError: they cannot be installed.
    """
    stamp, wanted = folder / "installed", "\n".join(TOOLS)
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder
    sys.stderr.write(f"installing Polars and DuckDB into {folder} (once)\n")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(folder)]
    done = subprocess.run([sys.executable, *install, *TOOLS], capture_output=True, text=True)
    if done.returncode != 0:
        raise WorkError(
            "Polars and DuckDB cannot be installed",
            seen="\n".join(done.stderr.splitlines()[-4:]),
            hint="try again where there is a network",
        )
    stamp.write_text(wanted)
    return folder


def beside_duckdb(folder: Path, tools: Path) -> Row:
    """P12I: seconds of an ingestion ÷ those of DuckDB's copy with a hash of each row."""
    ours, duckdb = [], []
    for number in range(ROUNDS + 1):
        with_home = {"MILLRACE_HOME": str(folder / f"ingest-{number}")}
        ours.append(float(run_python(["-c", INGEST, str(folder / "size.yaml")], with_home)))
        copied = [str(folder / "rows.parquet"), str(folder / "copy.parquet")]
        duckdb.append(float(run_python(["-c", COPY, *copied], {"PYTHONPATH": str(tools)})))
    times = Rounds(ours[1:], duckdb[1:])  # the first round fills the cache of the disk
    return Row(
        name="P12I",
        what=f"ingestion of {MILLIONS} million rows × {COLUMNS + 1} ÷ DuckDB's COPY with a hash "
        f"({statistics.median(times.a):.1f} and {statistics.median(times.b):.1f} s)",
        value=times.ratio,
        goal="≤ 3",
        holds=times.ratio <= 3,
        samples={"ingest_s": times.a, "duckdb_s": times.b},
    )


def run_python(words: list[str], variables: Mapping[str, str]) -> str:
    """Run Python with additional variables, and return what it printed."""
    done = subprocess.run(
        [sys.executable, *words], env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-500:])
    return done.stdout.split()[-1]


@dataclass(frozen=True)
class TimedRun:
    """A run of the pipeline.

    Attributes:
        seconds: of the whole command.
        start: seconds until ingestion began.
        steps: seconds of ingestion, training and export, by name.
        peaks: for each step the memory of all processes when it was largest; empty if it was not
            sampled.
    """

    seconds: float
    start: float
    steps: Mapping[str, float]
    peaks: Mapping[str, Sample] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """The seconds after the start."""
        return self.seconds - self.start


def whole_run(folder: Path, tools: Path) -> Iterator[Row]:
    """P12 and P12E: `millrace run` ÷ the plain program, and the seconds of its export."""
    runs, plain = [], []
    for number in range(ROUNDS):
        runs.append(run_pipeline(folder, folder / f"run-{number}"))
        began = time.perf_counter()
        words = [str(PLAIN), str(folder / "rows.parquet"), str(folder)]
        run_python(words, {"PYTHONPATH": str(tools)})
        plain.append(time.perf_counter() - began)
    times = Rounds([each.work for each in runs], plain)
    samples = {
        "run_s": [each.seconds for each in runs],
        "start_s": [each.start for each in runs],
        "plain_s": plain,
        **{f"{step}_s": [each.steps[step] for each in runs] for step in runs[0].steps},
    }
    medians = {name: statistics.median(values) for name, values in samples.items()}
    yield Row(
        name="P12",
        what=f"`run` of {MILLIONS} million rows × {COLUMNS + 1}, one epoch, without its start ÷ a "
        f"plain program ({statistics.median(times.a):.0f} and {medians['plain_s']:.0f} s)",
        value=times.ratio,
        goal="≤ 2.5",
        holds=times.ratio <= 2.5,
        samples=samples,
        details="\n".join(f"- {name}: {value:.1f}" for name, value in medians.items()),
    )
    yield Row(
        name="P12E",
        what=f"export of 4 candidates with {MILLIONS * 100_000:,} test rows, seconds",
        value=medians["export_s"],
        goal="≤ 20",
        holds=medians["export_s"] <= 20,
        samples={"export_s": samples["export_s"]},
    )


def run_pipeline(folder: Path, home: Path, with_memory: bool = False) -> TimedRun:
    """Run the pipeline in a new home, and sample the memory of all its processes if wanted."""
    command = [str(Path(sys.executable).with_name("millrace")), "run", str(folder / "size.yaml")]
    began = time.perf_counter()
    with subprocess.Popen(
        command,
        env={**os.environ, "MILLRACE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        sampler = MemorySampler(process.pid)
        steps: dict[str, float] = {}
        start, printed = 0.0, []
        with sampler.running() if with_memory else nullcontext():
            for line in process.stdout:
                printed.append(line)
                if (found := DONE.search(line)) is not None:
                    steps[found[1]] = float(found[2])
                    sampler.step = f"after {found[1]}"
                    if found[1] == "ingest":
                        start = time.perf_counter() - began - steps["ingest"]
    if process.returncode != 0:
        raise RuntimeError("".join(printed)[-500:])
    return TimedRun(time.perf_counter() - began, start, steps, sampler.peaks)
