"""Runs a command in a child process; the parent reports the child's end if the child cannot.

When its raylet is gone, Ray's core ends the process by `_Exit(1)`, without running any Python. When
memory runs out, the kernel kills the process. In both cases the parent prints the error, as JSON if
JSON was requested, and ends the command's run in MLflow. Otherwise the parent only forwards its
signals to the child, which does not outlive the parent. The child has its own process group, so
that SIGINT reaches the child once, whether Ctrl-C or `kill` sent it.

The child gets SIGTERM and SIGHUP as SIGINT, because Ray and Prefect have handlers of their own for
SIGTERM, and some drop what they raise.
"""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import NoReturn

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.ray_folder import ray_folders, ray_logs

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORWARDED = (*STOPS, signal.SIGQUIT)
CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""The signals that mean a crash, not a requested stop."""
PR_SET_PDEATHSIG = 1
REPORTED = b"."
LOG_BYTES = 64 * 1024


def run_in_child(
    command: Callable[[], None],
    report: Callable[[MillraceError], None],
    clean_up: Callable[[], None],
    report_stop: Callable[[], None],
) -> None:
    """Run a command in a child process, and exit as the child exits.

    Args:
        command: reports its outcome, then returns or raises `SystemExit`.
        report: prints an error.
        clean_up: ends the runs in MLflow and Prefect that a crashed command left open.
        report_stop: says that a signal has stopped the command.
    """
    if not hasattr(os, "fork"):
        run_and_exit(command)
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    parent, started = os.getpid(), time.time()
    # A signal that arrives before the parent can forward it stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGTSTP})
    child = os.fork()
    if child == 0:
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a background job of a shell
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read)
        os.setpgid(0, 0)
        _die_with(parent)
        run_and_exit(partial(_run, command, write))
    os.close(write)
    stops = _forward_signals(child)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    status = os.waitpid(child, 0)[1]
    code = os.waitstatus_to_exitcode(status)
    has_reported = os.read(read, 1) == REPORTED
    os.close(read)
    if stops and code != 0:
        if not has_reported:
            report_stop()
            clean_up()
        _end_as(-stops[0] if code < 0 else 128 + stops[0])
    error = None
    if not has_reported and code != 0:
        error = describe_end(code, _read_last_words(child, started))
    if error is not None:
        report(error)
        sys.stdout.flush()  # `clean_up` may take a while
        clean_up()
        sys.exit(error.exit_code)
    _end_as(code)


def describe_end(code: int, words: str) -> MillraceError | None:
    """Return the error of a child that ended without a report.

    Return None if a signal that requests a stop, such as SIGTERM, ended the child.

    Args:
        code: the child's exit code, or the negative number of the signal that ended it.
        words: the last log line of Ray's core in the child; may be empty.
    """
    if code < 0 and -code not in CRASHES:
        return None
    ended = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    why = "because its Ray is gone" if code > 0 else "probably because memory ran out"
    return WorkError(
        f"the command's process ended too early, {why}; nothing unfinished was published",
        seen=f"{ended}{f': {words}' if words else ''}",
        valid="a machine with enough memory, and a Ray that runs as long as the command",
        hint="run the same command again: a `score` resumes, a `run` starts over; "
        f"the reason is in {ray_logs()}",
    )


def run_and_exit(command: Callable[[], None]) -> NoReturn:
    """Run a command and exit with its exit code, without the exit handlers of native libraries.

    Arrow's readers sometimes abort in their exit handlers (1 of 80 refused files on a busy
    machine), which made the exit code 134 instead of 2.
    """
    try:
        command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    threading._shutdown()  # type: ignore[attr-defined]  # joins the threads that are not daemons
    atexit._run_exitfuncs()
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # the stream's reader may be gone
            stream.flush()


def _run(command: Callable[[], None], write: int) -> None:
    """Run the command in the child, and tell the parent that it ended by itself."""
    try:
        command()
    finally:
        with suppress(OSError):  # the reader of stdout may be gone
            sys.stdout.flush()
        # Only Python's exit, with its exit handlers, follows.
        os.write(write, REPORTED)


def _forward_signals(child: int) -> list[int]:
    """Forward this process's signals to the child; Ctrl-Z stops both.

    Returns:
        The signals that ask the command to stop, in the order in which they come.
    """
    stops: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        del frame
        if signum in STOPS:
            stops.append(signum)
        os.kill(child, signal.SIGINT if signum in STOPS else signum)

    def stop(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        os.killpg(child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(child, signal.SIGCONT)  # reached when the shell continues this process

    with suppress(OSError):  # the child has set its group itself, or has ended
        os.setpgid(child, child)
    for each in FORWARDED:
        if signal.getsignal(each) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            signal.signal(each, forward)
    signal.signal(signal.SIGTSTP, stop)
    return stops


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent has ended already
            os._exit(1)


def _end_as(code: int) -> NoReturn:
    """End with an exit code, or by the signal whose negative number it is."""
    _flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def _read_last_words(child: int, started: float) -> str:
    """Return the last log line of Ray's core in the child, without its prefix; may be empty.

    Args:
        child: the process id, which an earlier command may have had as well.
        started: when the child started, in seconds since the epoch.
    """
    lines: list[str] = []
    name = f"session_*/logs/python-core-driver-*_{child}.log"
    for log in (log for folder in ray_folders() for log in folder.glob(name)):
        with suppress(OSError):  # it may be gone
            if log.stat().st_mtime >= started:
                lines += log.read_bytes()[-LOG_BYTES:].decode(errors="replace").splitlines()
    return lines[-1].rpartition("] ")[2].strip()[:300] if lines else ""
