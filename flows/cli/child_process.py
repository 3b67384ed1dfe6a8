"""Runs a command in a child process, whose parent reports its end if the child cannot.

Ray's core ends its process by `_Exit(1)`, without running any Python, when its raylet is gone; a
kernel that is out of memory kills it. Then the parent prints the error, as JSON if JSON was
requested, and ends the command's run in MLflow. Otherwise it only passes its signals on, and the
child does not outlive it. The child has a process group of its own, so that a Ctrl-C reaches it
once, whether it comes from the terminal or from `kill`.
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

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""The signals that end a command which nobody meant to stop."""
PR_SET_PDEATHSIG = 1
REPORTED = b"."
LOG_BYTES = 64 * 1024


def run_in_child(
    command: Callable[[], None],
    report: Callable[[MillraceError], None],
    clean_up: Callable[[], None],
) -> None:
    """Run a command in a child process, and end as the child ends.

    Args:
        command: returns or raises `SystemExit`, after it has reported its outcome.
        report: prints an error.
        clean_up: ends the runs of a command that could not end them.
    """
    if not hasattr(os, "fork"):
        run_and_exit(command)
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    parent = os.getpid()
    # A signal that arrives before the parent can forward it stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGTSTP})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        os.setpgid(0, 0)
        _die_with(parent)
        run_and_exit(partial(_run, command, write))
    os.close(write)
    _forward_signals(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    has_reported = os.read(read, 1) == REPORTED
    os.close(read)
    error = None if has_reported or code == 0 else describe_end(code, _read_last_words(child))
    if error is not None:
        report(error)
        sys.stdout.flush()  # what follows may take a while
        clean_up()
        sys.exit(error.exit_code)
    if code < 0:
        _die_by(-code)
    os._exit(code)


def describe_end(code: int, words: str) -> MillraceError | None:
    """Return the error of a child that ended without reporting; None if a signal stopped it.

    Args:
        code: its exit code; for a signal, the negative of its number.
        words: the last message of native code, or nothing.
    """
    if code < 0 and -code not in CRASHES:
        return None
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    why = "its Ray is gone" if code > 0 else "probably for want of memory"
    return WorkError(
        f"the command's process was ended while it worked, {why}; nothing unfinished was published",
        seen=f"{ended}{f': {words}' if words else ''}",
        valid="a machine with enough memory, and a Ray that lives as long as the command",
        hint="run the same command again: a `score` resumes, a `run` starts over; "
        f"the reason is in {ray_logs()}",
    )


def run_and_exit(command: Callable[[], None]) -> NoReturn:
    """Run a command and end this process as it ends, without the exit handlers of native libraries.

    Arrow's readers now and then abort in theirs (1 of 80 refused files on a busy machine), and the
    exit code was 134 instead of 2.
    """
    try:
        command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads that are not daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # its reader may be gone
            stream.flush()
    os._exit(code)


def _run(command: Callable[[], None], write: int) -> None:
    """Run the command in the child, and signal that it ended by itself."""
    try:
        command()
    finally:
        with suppress(OSError):  # the reader of stdout may be gone
            sys.stdout.flush()
        # Only Python's own exit, and its exit handlers, follow.
        os.write(write, REPORTED)


def _forward_signals(child: int) -> None:
    """Forward this process's signals to the child; Ctrl-Z stops both."""

    def forward(signum: int, frame: FrameType | None) -> None:
        del frame
        os.kill(child, signum)

    def stop(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        os.killpg(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child, signal.SIGCONT)  # reached when the shell continues this process

    with suppress(OSError):  # the child has done it itself, or has ended
        os.setpgid(child, child)
    for each in FORWARDED:
        signal.signal(each, forward)
    signal.signal(signal.SIGTSTP, stop)


def _die_with(parent: int) -> None:
    """Have this process killed when its parent ends, if the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)


def _die_by(signum: int) -> NoReturn:
    """End by the same signal as the child."""
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    os._exit(128 + signum)


def _read_last_words(child: int) -> str:
    """Return the last log line of Ray's core in a process that it ended, without its prefix."""
    lines: list[str] = []
    name = f"session_*/logs/python-core-driver-*_{child}.log"
    for log in (log for folder in ray_folders() for log in folder.glob(name)):
        with suppress(OSError):  # it may be gone
            lines += log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()
    return lines[-1].rpartition("] ")[2].strip()[:300] if lines else ""
