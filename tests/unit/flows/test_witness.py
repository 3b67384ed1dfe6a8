"""A command that cannot tell its end: its parent does."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from millrace.flows.cli.child_process import describe_end

PROGRAM = """
    import os, signal, sys, time
    from functools import partial
    from millrace.flows.console import print_error
    from millrace.flows.cli.child_process import run_in_child

    def command():
        sys.stdout.write("out ")
        {command}

    run_in_child(
        command,
        partial(print_error, as_json=True),
        lambda: sys.stderr.write("put right"),
        lambda: sys.stderr.write("stopped "),
    )
"""


def run(command: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM).format(command=command)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [("pass", 0), ("sys.exit(0)", 0), ("sys.exit(2)", 2), ("sys.exit(130)", 130)],
)
def test_a_command_that_ends_by_itself_is_left_alone(command: str, code: int) -> None:
    done = run(command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "out ", "")


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("os._exit(1)", "exit code 1"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os.abort()", "killed by SIGABRT"),
    ],
)
def test_one_that_is_ended_by_native_code_or_a_kill_is_told_as_json(
    command: str, seen: str
) -> None:
    done = run(command)
    told = json.loads(done.stdout.removeprefix("out "))
    assert done.returncode == 1
    assert told["seen"] == seen
    assert "run the same command again" in told["next"]
    assert done.stderr == "put right", "and no stack trace"


@contextmanager
def started(command: str) -> "Iterator[subprocess.Popen[str]]":
    """Start a command in a session of its own, and return when it has printed a line."""
    program = textwrap.dedent(PROGRAM).format(command=command)
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_a_signal_that_stops_a_command_stops_both_by_it(
    signum: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """Ctrl-C of a terminal goes to all of its group, `kill` to one process."""
    command = "signal.signal(signal.SIGINT, signal.SIG_DFL); print(flush=True); time.sleep(120)"
    with started(command) as process:
        send(process.pid, signum)
        assert process.wait(60) == -signum
        assert process.stdout is not None
        assert process.stdout.read() == "", "which is at its end when the child has ended"


def test_sigterm_stops_a_command_as_ctrl_c_does_with_its_own_exit_code() -> None:
    """Ray and Prefect have handlers of their own for SIGTERM."""
    command = (
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(130)); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(120)"
    )
    with started(command) as process:
        process.terminate()
        assert process.wait(60) == 143


def test_a_crash_after_sigterm_is_no_lack_of_memory() -> None:
    command = (
        "signal.signal(signal.SIGINT, lambda *_: os.abort()); print(flush=True); time.sleep(120)"
    )
    with started(command) as process:
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == "stopped put right"


@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ctrl_c_reaches_the_command_once(send: Callable[[int, int], None]) -> None:
    counted = (
        "n = []; signal.signal(signal.SIGINT, lambda *_: n.append(1)); print(flush=True); "
        "time.sleep(2); print(len(n))"
    )
    with started(counted) as process:
        assert process.stdout is not None
        send(process.pid, signal.SIGINT)
        assert process.stdout.read() == "1\n"


def test_ctrl_z_stops_both_until_the_shell_goes_on() -> None:
    with started("print(flush=True); time.sleep(1); print('done')") as process:
        (child,) = psutil.Process(process.pid).children()
        os.killpg(process.pid, signal.SIGTSTP)
        time.sleep(1.5)
        assert {psutil.Process(process.pid).status(), child.status()} == {psutil.STATUS_STOPPED}
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout is not None
        assert process.stdout.read() == "done\n"
        assert process.wait(10) == 0


def test_a_killed_parent_takes_the_command_with_it() -> None:
    program = textwrap.dedent(PROGRAM).format(command="print(flush=True); time.sleep(120)")
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started:
        started.stdout.readline()
        started.kill()
        assert started.stdout.read() == b"", "which is at its end when the child has ended"


def test_the_reason_of_ray_is_in_the_error() -> None:
    error = describe_end(1, "The connection to the plasma store is failed.")
    assert error is not None
    assert error.seen == "exit code 1: The connection to the plasma store is failed."
    assert describe_end(-signal.SIGTERM, "") is None
