"""Run a Python program in a subprocess with a time and a memory limit.

A program that hangs, crashes or exhausts its memory does not take its caller down. The subprocess
is `python -m millrace.models.common.subprocess_runner BYTES PROGRAM [ARGUMENTS…]`: it sets its own
memory limit and runs PROGRAM, a Python file or the name of a module. (Setting the limit between
fork and exec crashed the child if its parent ran threads of a gRPC client.) The last line on stderr
says why the program failed; run `python PROGRAM` for a stack trace.
"""

import os
import resource
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common import fork_client
from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.fork_client import FORK_SERVER

MAX_REASON = 500
"""Longest reason for a failure, in characters."""
DRIVER = Path("/dev/nvidiactl")
"""Exists where the NVIDIA driver is loaded."""
STATUS = Path("/proc/self/status")
RUNNER = "millrace.models.common.subprocess_runner"
ROOT = Path(__file__).resolve().parents[2]
BOOTSTRAP = (
    "import sys, types; sys.modules['millrace'] = types.ModuleType('millrace'); "
    "sys.modules['millrace'].__path__ = [sys.argv.pop(1)]; "
    "from millrace.models.common.subprocess_runner import main; main()"
)
"""Python code that imports this copy of Millrace where Millrace is not installed."""


@dataclass(frozen=True)
class Limits:
    """Limits of a subprocess.

    Attributes:
        seconds: wall time.
        memory: bytes of address space.
    """

    seconds: float
    memory: int


def run_in_subprocess(
    program: str,
    arguments: Sequence[str | Path],
    limits: Limits,
    *,
    what: str = "it",
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    python: Path | None = None,
    retry_killed: bool = True,
    may_fork: bool = False,
) -> bytes:
    """Run a Python program and return its stdout.

    Args:
        program: a Python file, or the name of a module.
        arguments: its arguments.
        limits: time and memory limits of the subprocess.
        what: what the program does, for error messages.
        stdin: its stdin.
        environment: all environment variables of the program; None: those of this process.
        python: the interpreter, which may lack Millrace's dependencies; None: this interpreter.
        retry_killed: whether the error of a killed program is transient, so that callers try again;
            false where the program's own use of memory is the most likely cause.
        may_fork: whether the program may start as a fork of the connected Ray's `fork_server`,
            which has imported what it needs. Its peak memory then includes what it does not need.

    Raises:
        WorkError: the program took too long, crashed or failed; the reason is its last line on
            stderr.
        TransientError: the program was killed, and `retry_killed` is true.
    """
    process = subprocess.Popen(
        [*_runner(python, may_fork), str(limits.memory), program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    try:
        out, errors = process.communicate(stdin, timeout=limits.seconds)
    except subprocess.TimeoutExpired as error:
        raise WorkError(f"{what} did not end within {limits.seconds:g} s") from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode == -signal.SIGKILL:
        if not retry_killed:
            raise WorkError(f"{what} was killed")
        # The kernel killed the program because memory ran out, or a person did: not its fault.
        hint = "the machine may have run out of memory; run the command again"
        raise TransientError(f"{what} was killed", hint=hint)
    if process.returncode:
        raise WorkError(describe_exit(process.returncode, errors.decode(errors="replace"), what))
    return out


def _runner(python: Path | None, may_fork: bool) -> list[str]:
    """Return the command that runs `main` of this module."""
    if python is not None:
        return [str(python), "-P", "-c", BOOTSTRAP, str(ROOT)]
    if may_fork and FORK_SERVER in os.environ:
        return [sys.executable, "-ISB", fork_client.__file__, os.environ[FORK_SERVER], RUNNER]
    return [sys.executable, "-P", "-m", RUNNER]


def describe_exit(status: int, errors: str, what: str = "it") -> str:
    """Return in one line why a process ended: its signal, its last line on stderr or its status."""
    if status < 0:
        return f"{what} crashed: {signal.Signals(-status).name}"
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    return lines[-1][:MAX_REASON] if lines else f"{what} ended with status {status}"


def main() -> None:
    """Run the program on the command line with a memory limit, in bytes, and without core dumps."""
    size, program, *arguments = sys.argv[1:]
    resource.setrlimit(memory_resource(), (int(size), int(size)))
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


def memory_resource() -> int:
    """Return the `resource` constant by which memory is limited on this machine.

    With an NVIDIA GPU the constant limits private writable memory, because CUDA reserves address
    space for all memory of the machine and of its GPUs, and does not start under a limit on address
    space.
    """
    return resource.RLIMIT_DATA if DRIVER.exists() else resource.RLIMIT_AS


def peak_memory() -> int:
    """Return this process's peak memory in bytes, without GPU memory.

    `getrusage` is only the fallback, because on Linux it also counts the parent's memory at the
    fork.
    """
    if STATUS.is_file():
        lines = STATUS.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


if __name__ == "__main__":
    main()
