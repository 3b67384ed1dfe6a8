"""P16: what the services of `millrace up` take while nobody uses them: CPU and memory.

`BENCH_IDLE_SECONDS` says how long they are watched, 120 by default. The CPU is what the kernel
charged to their processes, so other programs beside them do not count, though they make each
operation slower.
"""

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.measure import Row, failed_row
from bench.memory import pss_of
from millrace.flows.services import processes
from millrace.flows.settings import MARK
from tests.integration.up import all_up

SETTLE_SECONDS = 60.0
CPU_GOAL, MEMORY_GOAL = 0.04, 1.2


@dataclass(frozen=True)
class Usage:
    """What processes have used.

    Attributes:
        cpu: seconds of CPU since their start, by process id.
        pss: bytes of memory, where a page that several processes share counts once.
    """

    cpu: dict[int, float]
    pss: int

    def share_since(self, before: "Usage", seconds: float) -> float:
        """Return the share of one core that was used since `before`, `seconds` ago.

        A process that started in between counts from its start; one that ended does not count.
        """
        used = sum(cpu - before.cpu.get(pid, 0.0) for pid, cpu in self.cpu.items())
        return used / seconds


def parse_cpu(stat: str, ticks: int) -> float:
    """Return the seconds of CPU in the text of `/proc/PID/stat`, user and system.

    Args:
        stat: the text; the name of the program, in brackets, may have brackets and spaces.
        ticks: the kernel's clock ticks in a second.
    """
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / ticks


def read_usage(pids: Iterable[int]) -> Usage:
    """Return the usage of the processes that still run."""
    ticks = os.sysconf("SC_CLK_TCK")
    cpu, pss = {}, 0
    for pid in pids:
        try:
            cpu[pid] = parse_cpu(Path(f"/proc/{pid}/stat").read_text(), ticks)
            pss += pss_of(pid)[0]
        except OSError:
            cpu.pop(pid, None)  # it has ended
    return Usage(cpu, pss)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start all services with one live model, and measure them when they are idle."""
    seconds = float(os.environ.get("BENCH_IDLE_SECONDS", "120"))
    try:
        with (
            tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as at,
            all_up(Path(at)) as up,
        ):
            time.sleep(SETTLE_SECONDS)
            home = str(up.settings.home)
            before, began = read_usage(_pids(home)), time.monotonic()
            time.sleep(seconds)
            after = read_usage(_pids(home))
            share = after.share_since(before, time.monotonic() - began)
    except Exception as error:
        yield from (failed_row(name, f"{type(error).__name__}: {error}") for name in wanted)
        return
    every = {"P16": cpu_row(share, seconds), "P16M": memory_row(after.pss)}
    yield from (row for name, row in every.items() if name in wanted)


def cpu_row(share: float, seconds: float) -> Row:
    """Return the row of the CPU."""
    what = f"CPU of an idle `up` in {seconds:.0f} s, share of one core"
    goal = f"≤ {CPU_GOAL}"
    return Row(name="P16", what=what, value=share, goal=goal, holds=share <= CPU_GOAL)


def memory_row(pss: int) -> Row:
    """Return the row of the memory."""
    what, value = "memory of an idle `up`, GB PSS of all its processes", pss / 1e9
    goal = f"≤ {MEMORY_GOAL}"
    return Row(name="P16M", what=what, value=value, goal=goal, holds=value <= MEMORY_GOAL)


def _pids(home: str) -> list[int]:
    """Return the processes of the services; the supervisor has the mark too."""
    marked: list[psutil.Process] = processes.find_marked(MARK, home)
    return [process.pid for process in marked]
