"""Prefect's temporary server, where nothing else is up."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from millrace.flows.services.processes import find_marked, is_running
from millrace.flows.services.temporary_prefect import (
    COMMAND_VARIABLE,
    HOME_VARIABLE,
    TEMPORARY_VARIABLE,
    end_orphaned_servers,
)
from tests.integration.conftest import EXAMPLES, Home, make_home


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.2)


def servers_of(command: "subprocess.Popen[str]") -> list[psutil.Process]:
    """Return the servers of a command, or of the child in which it works."""
    root = psutil.Process(command.pid)
    works = {str(each.pid) for each in (root, *root.children())}
    return [
        process
        for process in find_marked(TEMPORARY_VARIABLE, "1")
        if process.environ().get(COMMAND_VARIABLE) in works
    ]


INGESTED = "tables/datasets/tabular/_delta_log/*.json"
IN_TRAINING = "training/*/checkpoint_*"


def begun(home: Home, until: str) -> "subprocess.Popen[str]":
    """Start a run as a terminal does, in a process group; return when its home has some files."""
    more = ("training.epochs=1000", "training.num_workers=1")
    words = ("run", str(EXAMPLES / "tabular.yaml"), *(w for m in more for w in ("--set", m)))
    command = home.start(*words, start_new_session=True)
    wait_for(lambda: any(home.path.glob(until)), 240)
    return command


def test_ctrl_c_of_a_terminal_ends_a_command_and_then_its_server(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    command = begun(home, IN_TRAINING)
    (server,) = servers_of(command)
    ours = [
        each.pid
        for each in find_marked(TEMPORARY_VARIABLE, "1")
        if each.environ().get(HOME_VARIABLE) == str(home.path)
    ]
    assert ours == [server.pid]  # Prefect itself has started none
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert command.returncode == 130, err
    assert "stopped; nothing unfinished was published" in err
    wait_for(lambda: not is_running(server), 10)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_ends_with_its_command_whatever_ends_that(tmp_path: Path, signum: int) -> None:
    """Where it is just begun: none of the command's own handlers is there yet."""
    home = make_home(tmp_path / "home")
    command = home.start("release", start_new_session=True)
    wait_for(lambda: servers_of(command))
    (server,) = servers_of(command)
    command.send_signal(signum)
    command.wait(60)
    wait_for(lambda: not is_running(server), 60)


def test_ctrl_c_twice_leaves_no_server(tmp_path: Path) -> None:
    command = begun(make_home(tmp_path / "home"), IN_TRAINING)
    (server,) = servers_of(command)
    os.killpg(command.pid, signal.SIGINT)
    os.killpg(command.pid, signal.SIGINT)
    command.communicate(timeout=60)
    wait_for(lambda: not is_running(server), 30)


def test_a_temporary_server_asks_for_the_login_and_for_its_own_name(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    command = home.start("release", start_new_session=True)
    try:
        wait_for(lambda: servers_of(command))
        (server,) = servers_of(command)
        login = (home.path / "run" / "prefect.login").read_text()
        assert not any(login.split(":")[1] in word for word in server.cmdline())
        os.kill(command.pid, signal.SIGSTOP)  # it must not be done before it was asked
        wait_for(lambda: server.net_connections("tcp4"))
        (port,) = {each.laddr.port for each in server.net_connections("tcp4")}
        answers: list[int] = []

        def asked(**more: Any) -> bool:
            url = f"http://127.0.0.1:{port}/api/admin/version"
            with suppress(httpx.ConnectError):
                answers.append(httpx.get(url, trust_env=False, timeout=30, **more).status_code)
            return bool(answers)

        wait_for(asked)
        asked(headers={"Host": f"evil.example:{port}"})
        assert answers == [401, 421]
    finally:
        command.kill()
        command.wait()
    wait_for(lambda: not is_running(server), 60)


def test_a_frozen_server_of_a_command_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    command = begun(home, INGESTED)
    (server,) = servers_of(command)
    end_orphaned_servers(str(home.path))
    assert server.is_running(), "its command runs"
    works = int(server.environ()[COMMAND_VARIABLE])
    server.suspend()
    command.kill()
    command.wait()
    wait_for(lambda: not psutil.pid_exists(works))
    assert server.is_running()
    end_orphaned_servers(str(tmp_path / "another"))
    assert server.is_running()
    end_orphaned_servers(str(home.path))
    assert not is_running(server)
