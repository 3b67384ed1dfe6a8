"""A test run that is killed leaves no process behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests import reaper

ROOT = Path(__file__).parents[2]
RUN = """
import subprocess, sys, time
from tests import reaper

reaper.start()
left = subprocess.Popen(["sleep", "600"], start_new_session=True, ENVIRONMENT)
time.sleep(WAIT)
print(left.pid, flush=True)
time.sleep(600)
"""
MARKED = RUN.replace(", ENVIRONMENT", "").replace("WAIT", "0")
WITHOUT_VARIABLES = RUN.replace("ENVIRONMENT", "env={}").replace("WAIT", "1.5")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(
    ("signum", "code"),
    [
        (signal.SIGINT, MARKED),
        (signal.SIGTERM, MARKED),
        (signal.SIGKILL, MARKED),
        (signal.SIGKILL, WITHOUT_VARIABLES),
    ],
    ids=["SIGINT", "SIGTERM", "SIGKILL", "without-variables"],
)
def test_what_a_run_has_started_ends_with_it(signum: int, code: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != reaper.VARIABLE}
    environment["TEST_RUN_LOOK_S"] = "0.1"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        left = Path("/proc") / run.stdout.readline().decode().strip()
        assert left.exists()
        run.send_signal(signum)
        run.wait(10)
    deadline = time.monotonic() + 20
    while is_alive(left):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: Path) -> bool:
    with suppress(OSError):
        return (process / "stat").read_text().split()[2] != "Z"
    return False
