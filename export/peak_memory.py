"""The most memory that this process held."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_memory() -> int:
    """Return the most bytes of memory that this process held at a time; a GPU's do not count.

    `getrusage` is no use where there is another way: Linux counts in what the parent held at the
    moment of the fork.
    """
    if STATUS.is_file():
        lines = STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
