"""The Ray of `up`, under a supervisor of this one service: commands share it, and it stops."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from millrace.flows.run_state import read_live
from millrace.flows.services import processes
from millrace.flows.settings import MARK, Settings
from millrace.flows.tool_variables import child_environment
from millrace.models.ray.warm import WarmRay

SUPERVISE = """
from millrace.flows.services import service_specs, supervisor
supervisor.local_services = lambda settings: (service_specs.ray_service(settings),)
supervisor.main()
"""

COMMAND = """
import json, os, sys, time
from pathlib import Path
from millrace.flows import settings, tool_variables
from millrace.models.ray.cluster import connect_to_ray
from millrace.models.common.user_code import load

import logging
logging.basicConfig(level=logging.INFO)
chosen = tool_variables.apply(settings.load())
with connect_to_ray("local", 1, chosen.warm_ray()):
    import ray
    answer = load("mine:answer", Path.cwd())
    @ray.remote(num_cpus=1)
    class Worker:
        def look(self):
            return {
                "answer": answer(), "color": os.environ.get("COLOR"), "folder": os.getcwd(),
                "pid": os.getpid(), "home": os.environ["HOME"],
            }
    workers = [Worker.remote()]
    found = ray.get(workers[0].look.remote())
    found["gcs"] = ray.get_runtime_context().gcs_address
    found["free"] = ray.available_resources().get("CPU")
    print(json.dumps(found), flush=True)
    if "hold" in sys.argv:
        time.sleep(600)
"""


def _wait(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@dataclass
class Home:
    """A home, the supervisor of its Ray, and the commands that use it."""

    settings: Settings
    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def warm(self) -> WarmRay:
        return WarmRay(self.settings.run)

    def supervise(self) -> "subprocess.Popen[str]":
        process = self._python(SUPERVISE, {MARK: str(self.settings.home)})
        _wait(lambda: read_live(self.settings.run), "the supervisor runs")
        return process

    def command(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a command in a folder of its own, with code of its own."""
        return self._python(COMMAND, environment, *arguments)

    def _python(
        self, code: str, environment: dict[str, str], *arguments: str
    ) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env={**child_environment(self.settings), **environment},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def look(self, answer: int, **environment: str) -> dict[str, Any]:
        """Return what a worker of a new command sees, whose code answers `answer`."""
        (self.folder / "mine.py").write_text(f"def answer():\n    return {answer}\n")
        command = self.command(**environment)
        return told(command)

    def ray_pid(self) -> int:
        ready = self.warm.read_ready()
        assert ready is not None
        return ready.pid

    def left(self) -> list[psutil.Process]:
        """Return the processes of Ray."""
        supervisors = {process.pid for process in self.started}
        marked = processes.find_marked(MARK, str(self.settings.home))
        return [process for process in marked if process.pid not in supervisors]

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()
        processes.end_processes(self.left(), 10.0)


def told(command: "subprocess.Popen[str]") -> dict[str, Any]:
    assert command.stdout is not None
    found: dict[str, Any] = json.loads(command.stdout.readline())
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(Settings(home=tmp_path / "home", ray_idle=20), tmp_path / "a folder")
    made.folder.mkdir()
    made.settings.installation().prepared()
    try:
        yield made
    finally:
        made.end()


@pytest.mark.slow
def test_commands_share_one_ray_with_their_own_code_and_environment(home: Home) -> None:
    home.supervise()
    first = home.look(1, COLOR="red")
    second = home.look(2, COLOR="blue")
    assert first["gcs"] == second["gcs"]
    assert first["pid"] != second["pid"]
    assert (first["answer"], first["color"]) == (1, "red")
    assert (second["answer"], second["color"]) == (2, "blue")
    assert second["folder"] == str(home.folder)
    assert second["free"] == first["free"]
    ray = psutil.Process(home.ray_pid())
    tree = [ray, *ray.children(recursive=True)]
    listening, shown = set(), ""
    for process in tree:
        with suppress(psutil.NoSuchProcess):  # a worker that has ended, noticed or not
            shown += " ".join(process.cmdline())
            ports = process.net_connections("tcp")
            listening |= {each.laddr.ip for each in ports if each.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert "COLOR" not in shown
    _wait(lambda: not home.left(), "Ray stops when nothing uses it")
    assert home.look(3)["gcs"] != first["gcs"]


@pytest.mark.chaos
def test_a_killed_command_gives_its_cpus_back(home: Home) -> None:
    home.supervise()
    total = home.look(1)["free"]
    killed = home.command("hold")
    told(killed)
    assert home.warm.is_in_use()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not home.warm.is_in_use()
    _wait(lambda: home.look(1)["free"] == total, "its actor is gone")


@pytest.mark.chaos
def test_a_ray_whose_raylet_was_killed_is_replaced(home: Home) -> None:
    home.supervise()
    first = home.look(1)
    ray = psutil.Process(home.ray_pid())
    next(each for each in ray.children() if each.name() == "raylet").kill()
    _wait(lambda: not home.left(), "the rest of Ray ends with it")
    second = home.look(1)
    assert second["gcs"] != first["gcs"]
    assert home.ray_pid() != ray.pid


@pytest.mark.chaos
def test_nothing_outlives_a_killed_supervisor_but_what_is_used(home: Home) -> None:
    supervisor = home.supervise()
    (home.folder / "mine.py").write_text("def answer():\n    return 1\n")
    command = home.command("hold")
    told(command)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    time.sleep(3.0)
    assert command.poll() is None
    assert home.left()
    command.kill()
    command.wait()
    _wait(lambda: not home.left(), "Ray ends after its last command")
    assert home.warm.read_ready() is None


def test_without_up_a_command_has_its_own_ray(home: Home) -> None:
    assert home.look(1)["answer"] == 1
    assert not home.warm.ready.exists()
    assert home.left() == []
