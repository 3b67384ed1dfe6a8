"""P15 and P17: seconds of whole commands on small work, as a user waits for them.

Every command is a process of its own, with a home and ports of the benchmark's own. The first `run`
beside `millrace up` starts Ray; the next ones find it warm.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.measure import Row, measure_rows
from millrace.flows.settings import variables
from tests.integration.ports import service_ports

ROUNDS = 3
EXAMPLES = Path(__file__).parents[1] / "examples"
DIGITS = str(EXAMPLES / "digits.yaml")
MILLRACE = str(Path(sys.executable).with_name("millrace"))
ROWS = 1_000
GOALS = {
    "P15C": ("`run` of the digits beside `up`, Ray cold", 30.0),
    "P15W": ("`run` of the digits beside `up`, Ray warm", 20.0),
    "P15S": (f"`score` of {ROWS:,} rows beside `up`, Ray warm", 8.0),
    "P15N": ("`score` of nothing beside `up`", 2.0),
    "P15U": ("`status`", 1.5),
    "P15A": ("`run` of the digits without `up`", 35.0),
    "P15K": ("`check`", 1.0),
    "P15H": ("`--help`", 0.3),
    "P17": ("`demo` after the installation", 45.0),
}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        beside_up = {"P15C", "P15W", "P15S", "P15N", "P15U"} & set(wanted)
        if beside_up:
            seconds = time_beside_up(folder)
            yield from (row_of(name, seconds[name]) for name in GOALS if name in beside_up)
        alone: dict[str, Callable[[int], float]] = {
            "P15A": lambda number: Home(folder / f"alone-{number}").seconds("run", DIGITS),
            "P15K": lambda _: Home(folder / "check").seconds("check", DIGITS),
            "P15H": lambda _: Home(folder / "help").seconds("--help"),
            "P17": lambda number: Home(folder / f"demo-{number}").seconds("demo"),
        }
        measures = {name: _measure(name, measure) for name, measure in alone.items()}
        yield from measure_rows(measures, wanted)


class Home:
    """A home with ports of its own, in which commands are run."""

    def __init__(self, path: Path) -> None:
        ports = {f"MILLRACE_{name.upper()}": str(port) for name, port in service_ports().items()}
        clean = {name: value for name, value in os.environ.items() if name not in variables()}
        self._environment = {**clean, **ports, "MILLRACE_HOME": str(path)}

    def seconds(self, *words: str) -> float:
        """Run a command to its end, and return its seconds.

        Raises:
            RuntimeError: the command failed.
        """
        began = time.perf_counter()
        done = subprocess.run(
            [MILLRACE, *words],
            env=self._environment,
            cwd=EXAMPLES.parent,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"millrace {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return time.perf_counter() - began

    @contextmanager
    def up(self) -> Iterator[None]:
        """Keep the services running."""
        self.seconds("up")
        try:
            yield
        finally:
            self.seconds("down")


def time_beside_up(folder: Path) -> dict[str, list[float]]:
    """Return the seconds of the commands that run beside `up`, by row."""
    found: dict[str, list[float]] = {name: [] for name in GOALS}
    for number in range(ROUNDS):
        home = Home(folder / f"up-{number}")
        input = folder / f"rows-{number}.parquet"
        write_digits(input, seed=number)
        score = ("score", DIGITS, "--input", str(input), "--date", "2026-01-05")
        with home.up():
            found["P15C"].append(home.seconds("run", DIGITS))
            found["P15W"].append(home.seconds("run", DIGITS))
            home.seconds("release")
            found["P15S"].append(home.seconds(*score))
            found["P15N"].append(home.seconds(*score))
            found["P15U"].append(home.seconds("status"))
    return found


def write_digits(file: Path, seed: int) -> None:
    """Write rows like those of the digits: an image of 64 floats, from 0 to 16."""
    images = np.random.default_rng(seed).uniform(0, 16, (ROWS, 64)).astype(np.float32)
    pq.write_table(pa.table({"image": pa.array(list(images))}), file)


def row_of(name: str, seconds: Sequence[float]) -> Row:
    """Return the row of the seconds of a command."""
    what, goal = GOALS[name]
    value = statistics.median(seconds)
    return Row(
        name=name,
        what=f"{what}, s, median of {len(seconds)}",
        value=value,
        goal=f"≤ {goal:g} s",
        holds=value <= goal,
        samples={"seconds": list(seconds)},
    )


def _measure(name: str, measure: Callable[[int], float]) -> Callable[[], Row]:
    return lambda: row_of(name, [measure(number) for number in range(ROUNDS)])
