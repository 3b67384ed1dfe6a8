"""What other programs take of the machine while something is measured."""

import os
import time
from typing import Any

import psutil


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
        whole, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(whole))
        busy = sum(_busy_seconds(whole[number]) for number in usable if number < len(whole))
        return busy - own.user - own.system, time.perf_counter()


def _busy_seconds(core: Any) -> float:
    """Return the seconds that a core was not idle, those that its host took included."""
    idle = core.idle + getattr(core, "iowait", 0.0)
    guests = getattr(core, "guest", 0.0) + getattr(core, "guest_nice", 0.0)
    return float(sum(core) - idle - guests)
