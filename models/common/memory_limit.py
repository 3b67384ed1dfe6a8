"""Run a program that first limits itself: `python -m …memory_limit BYTES PROGRAM [ARGUMENTS…]`.

PROGRAM is a Python file, or the name of a module. The limits are set by the process itself: done
between a fork and an exec, beside the threads of a gRPC client, that ended the child. What the
program dies of is the last line on stderr; a stack trace is what `python PROGRAM` is for.

Where there is an NVIDIA GPU the limit is on private writable memory: CUDA reserves address space
for all memory of the machine and of its GPUs, and does not start where it may not.
"""

import resource
import runpy
import sys
from pathlib import Path

from millrace.models.common.errors import MillraceError

DRIVER = Path("/dev/nvidiactl")
"""There where the NVIDIA driver is loaded."""
STATUS = Path("/proc/self/status")


def main() -> None:
    """Run the program under a limit on its memory, in bytes, and without a core dump."""
    size, program, *arguments = sys.argv[1:]
    resource.setrlimit(limit_of_memory(), (int(size), int(size)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.argv = [program, *arguments]
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__")
    except MillraceError as error:
        sys.exit(error.what)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}")


def limit_of_memory() -> int:
    """Return the resource whose limit holds memory here."""
    return resource.RLIMIT_DATA if DRIVER.exists() else resource.RLIMIT_AS


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


if __name__ == "__main__":
    main()
