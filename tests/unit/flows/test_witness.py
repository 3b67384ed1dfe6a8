"""A command that cannot tell its end: its parent does."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from flows.witness import error_of

PROGRAM = """
    import os, signal, sys, time
    from functools import partial
    from flows.console import print_error
    from flows.witness import run_witnessed

    def command():
        sys.stdout.write("out ")
        {command}

    run_witnessed(command, partial(print_error, as_json=True))
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
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_stops_a_command_stops_both_by_it(signum: signal.Signals) -> None:
    command = "signal.signal(signal.SIGINT, signal.SIG_DFL); print(flush=True); time.sleep(120)"
    program = textwrap.dedent(PROGRAM).format(command=command)
    started = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True
    )
    assert started.stdout is not None
    with started:
        started.stdout.readline()
        # Ctrl-C goes to all of a terminal's group, another signal to whom it is sent
        (os.killpg if signum == signal.SIGINT else os.kill)(started.pid, signum)
        assert started.wait(60) == -signum
        assert started.stdout.read() == b"", "which is at its end when the child has ended"


def test_a_killed_parent_takes_the_command_with_it() -> None:
    program = textwrap.dedent(PROGRAM).format(command="print(flush=True); time.sleep(120)")
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert started.stdout is not None
    with started:
        started.stdout.readline()
        started.kill()
        assert started.stdout.read() == b"", "which is at its end when the child has ended"


def test_the_reason_of_ray_is_in_the_error() -> None:
    error = error_of(1, "The connection to the plasma store is failed.")
    assert error is not None
    assert error.seen == "exit code 1: The connection to the plasma store is failed."
    assert error_of(-signal.SIGTERM, "") is None
