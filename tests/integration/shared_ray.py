"""One Ray for the commands of a whole test run: each start of one takes about 5 CPU seconds.

It is the Ray that `millrace up` keeps, without an `up`. A command whose home runs `up` uses that
one, and a command that a test starts by `Home.start` starts its own.
"""

import subprocess
import sys
import time
from pathlib import Path

from millrace.flows.settings import Settings
from millrace.flows.tool_variables import child_environment
from millrace.models.ray.fork_imports import TRAINING_IMPORTS
from millrace.models.ray.warm import SHARES, WarmRay, default_cpus

SERVE = """
from millrace.flows import settings, tool_variables
tool_variables.apply(settings.load())
from millrace.models.ray.server import main
main()
"""
IDLE_SECONDS = 1800
START_SECONDS = 120.0


def begin(home: Path) -> None:
    """Begin to start it in a home of its own.

    A shell starts it in the background, so that it does not end with the worker of pytest that
    needed it first; `tests/reaper.py` ends it.
    """
    settings = Settings(home=home)
    words = [sys.executable, "-P", "-c", SERVE, str(settings.run)]
    words += [str(SHARES * default_cpus(1)), str(IDLE_SECONDS), *TRAINING_IMPORTS]
    with (home / "log").open("wb") as log:
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *words],
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def wait(run: Path) -> None:
    """Wait until commands can connect.

    Args:
        run: the folder `run` of its home.
    """
    deadline = time.monotonic() + START_SECONDS
    while WarmRay(run).read_ready() is None:
        assert time.monotonic() < deadline, (run.parent / "log").read_text()
        time.sleep(0.1)
