"""What other programs take of the machine while something is measured."""

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

QUIET = 0.15
"""Share of the cores that others may take while something is measured that is to count."""
ROUNDS, MOST_SECONDS = 3, 20.0
"""Measurements that are made on a busy machine, and the time after which no other one begins."""
T = TypeVar("T")


class Others:
    """The share of the cores that other programs, or the machine's host, take during a block."""

    def __init__(self, cores: int) -> None:
        """Measure over `cores` cores."""
        self.cores = cores
        self.share = 0.0

    def __enter__(self) -> "Others":
        """Begin."""
        self._began = self._seconds()
        return self

    def __exit__(self, *exc: object) -> None:
        """Set `share`."""
        used, wall = (end - began for end, began in zip(self._seconds(), self._began, strict=True))
        self.share = max(0.0, used / (self.cores * wall))

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Return the CPU seconds that others have used so far, and the time."""
        import psutil  # which an environment of vLLM's own need not have

        whole, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(whole))
        busy = sum(_busy_seconds(whole[number]) for number in usable if number < len(whole))
        return busy - own.user - own.system, time.perf_counter()


def measure_quietly(measure: Callable[[], T], cores: int) -> tuple[T, float]:
    """Measure again while other programs take the cores, and return what was measured with least.

    Args:
        measure: the measurement.
        cores: cores that this process may use.

    Returns:
        The measurement, and the share of the cores that others took meanwhile.
    """
    found: list[tuple[float, T]] = []
    began = time.monotonic()
    for _ in range(ROUNDS):
        with Others(cores) as others:
            measured = measure()
        found.append((others.share, measured))
        if others.share <= QUIET or time.monotonic() - began > MOST_SECONDS:
            break
    share, quietest = min(found, key=lambda each: each[0])
    return quietest, share


def _busy_seconds(core: Any) -> float:
    """Return the seconds that a core was not idle, those that its host took included."""
    idle = core.idle + getattr(core, "iowait", 0.0)
    guests = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
    return float(sum(core) - idle - guests)
