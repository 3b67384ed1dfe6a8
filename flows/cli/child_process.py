"""A command runs in a child process, whose parent tells what it came to if the child cannot.

Ray's core ends the process that it runs in, by `_Exit(1)` and without a word of Python, when its
raylet is gone; a kernel that is out of memory kills it. Then the parent prints the error, as JSON
where JSON was asked for, and ends the command's run in MLflow. It does nothing else: a signal that
it gets it passes on, and the child does not outlive it. The child has a process group of its own,
so that a Ctrl-C reaches it once, whether it comes from the terminal or from `kill`.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.ray_folder import ray_folders, ray_logs

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
KILLS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""By which a command ends that nobody meant to stop."""
PR_SET_PDEATHSIG = 1
TOLD = b"."
LOG_BYTES = 64 * 1024


def run_witnessed(
    command: Callable[[], None],
    tell: Callable[[MillraceError], None],
    put_right: Callable[[], None],
) -> None:
    """Run a command in a child process and end as it ends.

    Args:
        command: ends by itself, or by `SystemExit`; it has told its outcome then.
        tell: prints an error.
        put_right: ends what a command left that could not tell its end.
    """
    if not hasattr(os, "fork"):
        run_to_the_end(command)
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    parent = os.getpid()
    # one that comes before the parent can pass it on waits until it can
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED_ON, signal.SIGTSTP})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        os.setpgid(0, 0)
        _end_with(parent)
        run_to_the_end(partial(_run, command, write))
    os.close(write)
    _pass_signals_on(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = os.waitpid(child, 0)[1]
    has_told = os.read(read, 1) == TOLD
    os.close(read)
    if has_told or os.waitstatus_to_exitcode(status) == 0:
        os._exit(_code(status))
    error = error_of(os.waitstatus_to_exitcode(status), _last_words(child))
    if error is None:
        _end_by(os.WTERMSIG(status))
    else:
        tell(error)
        sys.stdout.flush()  # what follows may take a while
        put_right()
        sys.exit(error.exit_code)


def error_of(code: int, words: str) -> MillraceError | None:
    """Return what to say of a child that ended without a word; None where a signal stopped it.

    Args:
        code: its exit code; of a signal the negative of its number.
        words: what native code said last, or nothing.
    """
    if code < 0 and -code not in KILLS:
        return None
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    why = "its Ray is gone" if code > 0 else "for want of memory, as like as not"
    return WorkError(
        f"the command's process was ended while it worked, {why}; nothing unfinished was published",
        seen=f"{ended}{f': {words}' if words else ''}",
        valid="a machine with enough memory, and a Ray that lives as long as the command",
        hint="run the same command again: a `score` takes up what was scored, a `run` begins anew; "
        f"why is in {ray_logs()}",
    )


def run_to_the_end(command: Callable[[], None]) -> NoReturn:
    """Run a command and end this process as it ends, but for what native libraries do at exit.

    Arrow's readers now and then abort there (1 of 80 refused files on a busy machine), and the
    exit code was 134 in place of 2.
    """
    try:
        command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]  # threads that are to be waited for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody may read it any more
            stream.flush()
    os._exit(code)


def _run(command: Callable[[], None], write: int) -> None:
    """Run the command in the child, and say that it came to an end of its own."""
    try:
        command()
    finally:
        with suppress(OSError):  # nobody may read stdout any more
            sys.stdout.flush()
        # behind it come only Python's own exit, and what was registered for that
        os.write(write, TOLD)


def _pass_signals_on(child: int) -> None:
    """Let the signals that this process gets reach the child; Ctrl-Z stops both."""

    def pass_on(signum: int, frame: FrameType | None) -> None:
        del frame
        os.kill(child, signum)

    def stop(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        os.killpg(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child, signal.SIGCONT)  # here when the shell goes on with it

    with suppress(OSError):  # the child has done it, or has ended
        os.setpgid(child, child)
    for each in PASSED_ON:
        signal.signal(each, pass_on)
    signal.signal(signal.SIGTSTP, stop)


def _end_with(parent: int) -> None:
    """Let this process be killed when its parent ends, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def _code(status: int) -> int:
    if os.WIFSIGNALED(status):
        _end_by(os.WTERMSIG(status))
    return os.WEXITSTATUS(status)


def _end_by(signum: int) -> None:
    """End as the child did, by the same signal."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)


def _last_words(child: int) -> str:
    """Return the last line of Ray's core in a process that it ended, without its prefix."""
    lines: list[str] = []
    name = f"session_*/logs/python-core-driver-*_{child}.log"
    for log in (log for folder in ray_folders() for log in folder.glob(name)):
        with suppress(OSError):  # it may be gone
            lines += log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()
    return lines[-1].rpartition("] ")[2].strip()[:300] if lines else ""
