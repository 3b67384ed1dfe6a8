"""A program in a process of its own: what hangs, crashes or eats memory takes nothing with it."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.errors import TransientError, WorkError

LAST_WORDS = 500
ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = (
    "import sys, types; sys.modules['millrace'] = types.ModuleType('millrace'); "
    "sys.modules['millrace'].__path__ = [sys.argv.pop(1)]; "
    "from millrace.models.common.memory_limit import main; main()"
)
"""For a Python in which Millrace is not installed: the package is made of the folder of ours."""


@dataclass(frozen=True)
class Limits:
    """What a program may take.

    Attributes:
        seconds: wall time.
        memory: bytes of address space.
    """

    seconds: float
    memory: int


def run_apart(
    program: str,
    arguments: Sequence[str | Path],
    limits: Limits,
    *,
    what: str = "it",
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    python: Path | None = None,
) -> bytes:
    """Run a Python program and return what it wrote on stdout.

    Args:
        program: a Python file, or the name of a module.
        arguments: its arguments.
        limits: what it may take.
        what: what it does, for the error of one that takes too long.
        stdin: what it reads.
        environment: its whole environment; None for this process's.
        python: the interpreter, which may lack all that Millrace installs; None for this one.

    Raises:
        WorkError: it took too long, crashed or failed; the reason is its last words.
        TransientError: it was killed.
    """
    words = (str(limits.memory), program, *map(str, arguments))
    limited = [sys.executable, "-P", "-m", "millrace.models.common.memory_limit"]
    if python is not None:
        limited = [str(python), "-P", "-c", ELSEWHERE, str(ROOT)]
    process = subprocess.Popen(
        [*limited, *words],
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
        # the kernel, short of memory, or a person: nothing that the program did
        raise TransientError(f"{what} was killed", hint="try it again")
    if process.returncode:
        raise WorkError(ending(process.returncode, errors.decode(errors="replace"), what))
    return out


def ending(status: int, errors: str, what: str = "it") -> str:
    """Return why a process ended, in a line: its signal, its last words or its status."""
    if status < 0:
        return f"{what} crashed: {signal.Signals(-status).name}"
    told = [line for line in errors.strip().splitlines() if line.strip()]
    return told[-1][:LAST_WORDS] if told else f"{what} ended with status {status}"
