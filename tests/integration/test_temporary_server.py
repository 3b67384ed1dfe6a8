"""Prefect's temporary server, where nothing else is up."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from flows.processes import marked
from flows.temporary_server import COMMAND, TEMPORARY, end_orphans
from tests.integration.conftest import EXAMPLES, Home, make_home


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)


def servers_of(command: "subprocess.Popen[str]") -> list[psutil.Process]:
    return [p for p in marked(TEMPORARY, "1") if p.environ().get(COMMAND) == str(command.pid)]


def begun(home: Home) -> "subprocess.Popen[str]":
    """Start a run as a terminal does, in a process group, and return when its flow is at work."""
    words = ("run", str(EXAMPLES / "tabular.yaml"), "--set", "training.epochs=1000")
    command = home.start(*words, start_new_session=True)
    wait_for(lambda: any((home.path / "training").glob("*/checkpoint_*")))
    return command


def test_ctrl_c_of_a_terminal_ends_a_command_and_then_its_server(tmp_path: Path) -> None:
    command = begun(make_home(tmp_path / "home"))
    (server,) = servers_of(command)
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert "stopped; nothing unfinished was published" in err
    wait_for(lambda: not server.is_running(), 10)


def test_the_server_of_a_command_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    command = begun(home)
    (server,) = servers_of(command)
    end_orphans(str(home.path))
    assert server.is_running(), "its command runs"
    command.kill()
    command.wait()
    assert server.is_running()
    end_orphans(str(tmp_path / "another"))
    assert server.is_running()
    end_orphans(str(home.path))
    assert not server.is_running()
