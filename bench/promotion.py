"""R1 to R4: seconds from an event until clients get the right answers, with all services up.

The services are those of `millrace up`, with a home of their own. A client sends requests by the
model's name all the time. Its first right answer ends the measurement: an answer of the other
version after the alias was moved, or of the live version after a server was killed.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

from bench.measure import Row, measure_rows
from tests.integration.up import Up, all_up

MOVES, KILLS = 10, 5
AT_MOST = 120.0


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start all services, measure the wanted rows, and stop them."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as home,
        all_up(Path(home)) as up,
    ):
        if {"R1", "R2"} & set(wanted):
            new, back = time_moves(up)
            for name, what, seconds in (("R1", "alias set", new), ("R2", "alias set back", back)):
                if name in wanted:
                    what = f"{what} → first answer of that version, s, median of {MOVES}"
                    yield row_of(name, what, seconds, goal=10.0)
        measures = {
            "R3": partial(recovery, up, "R3", "Triton", Up.kill_triton),
            "R4": partial(recovery, up, "R4", "a backend's process", Up.kill_backend),
        }
        yield from measure_rows(measures, wanted)


def time_moves(up: Up) -> tuple[list[float], list[float]]:
    """Promote and roll back, and return the seconds of each."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for version in (2, 1) * MOVES:
        up.until_settled(3 - version, AT_MOST)
        up.move(version)
        seconds[version].append(up.seconds_until(version, AT_MOST))
    return seconds[2], seconds[1]


def recovery(up: Up, name: str, server: str, kill: Callable[[Up], None]) -> Row:
    """Kill a server several times, and return the row of the times until it answers again."""
    seconds = []
    for _ in range(KILLS):
        version = up.answers()
        assert version is not None
        up.until_settled(version, AT_MOST)
        kill(up)
        time.sleep(0.1)  # a killed process may answer once more
        seconds.append(0.1 + up.seconds_until(version, AT_MOST))
    return row_of(
        name, f"{server} killed → right answers again, s, median of {KILLS}", seconds, 30.0
    )


def row_of(name: str, what: str, seconds: list[float], goal: float) -> Row:
    """Return the row of times, of which the largest must reach the goal."""
    return Row(
        name=name,
        what=f"{what} (largest {max(seconds):.1f})",
        value=statistics.median(seconds),
        goal=f"all ≤ {goal:g} s",
        holds=max(seconds) <= goal,
        samples={"seconds": seconds},
    )
