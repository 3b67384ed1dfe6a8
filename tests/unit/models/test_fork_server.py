"""Programs in forks of a process that has imported their libraries already."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from millrace.models.common import fork_client
from millrace.models.common.low_priority import LOW_PRIORITY

PROGRAM = """
import os, sys
print("colorsys" in sys.modules, sys.argv[1:], os.getcwd(), os.environ.get("COLOR"), end="")
print("", sys.stdin.read(), os.getpid() == os.getpgrp(), file=sys.stderr)
sys.exit(7)
"""


@dataclass
class Server:
    """A server that has imported `colorsys`, which no other program here imports."""

    socket: Path
    process: "subprocess.Popen[bytes]"
    folder: Path

    def start(self, code: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        program = self.folder / "program.py"
        program.write_text(code)
        client = [sys.executable, "-ISB", fork_client.__file__, str(self.socket), str(program)]
        return subprocess.Popen(
            [*client, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **environment},
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:  # the path of a socket must be short
        socket = Path(folder) / "s"
        module = "millrace.models.common.fork_server"
        process = subprocess.Popen([sys.executable, "-P", "-m", module, str(socket), "colorsys"])
        try:
            _wait(socket.exists)
            yield Server(socket, process, tmp_path)
        finally:
            process.kill()
            process.wait()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_is_as_if_its_client_had_run_it(server: Server) -> None:
    client = server.start(PROGRAM, "a b", COLOR="red")
    out, errors = client.communicate("input")
    assert out == f"True ['a b'] {server.folder} red"
    assert errors == " input True\n"
    assert client.returncode == 7


def test_other_variables_that_imports_read_make_it_run_by_itself(server: Server) -> None:
    client = server.start(PROGRAM, OMP_NUM_THREADS="3")
    out, _ = client.communicate("")
    assert out.startswith("False")
    assert client.returncode == 7


def test_it_has_the_lowest_priority_in_a_session_of_its_own_if_it_is_asked(server: Server) -> None:
    code = """
import os
from pathlib import Path
group = Path("/proc/self/autogroup")
print(os.getsid(0) == os.getpid() == os.getpgrp(), os.sched_getscheduler(0) == os.SCHED_IDLE)
print(group.read_text().split()[-1] if group.exists() else 19)
"""
    out, _ = server.start(code, **{LOW_PRIORITY: "1"}).communicate("")
    assert out.split() == ["True", "True", "19"]
    out, _ = server.start(code).communicate("")
    assert out.split()[:2] == ["False", "False"]


def test_without_a_server_it_runs_by_itself(server: Server) -> None:
    server.process.kill()
    server.process.wait()
    client = server.start(PROGRAM)
    assert client.communicate("")[0].startswith("False")
    assert client.returncode == 7


def test_a_crash_is_the_clients_too(server: Server) -> None:
    client = server.start("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    client.communicate("")
    assert client.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("ended", ["client", "server"])
def test_a_program_ends_with_its_client_and_with_its_server(server: Server, ended: str) -> None:
    client = server.start("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    assert client.stdout is not None
    program = psutil.Process(int(client.stdout.readline()))
    (client if ended == "client" else server.process).kill()
    _wait(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)
    client.communicate()
    assert client.returncode == -signal.SIGKILL


def test_programs_draw_different_random_numbers() -> None:
    """numpy's global state is copied by a fork, so each program seeds it anew."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        module = "millrace.models.common.fork_server"
        process = subprocess.Popen([sys.executable, "-P", "-m", module, str(socket), "numpy"])
        try:
            _wait(socket.exists)
            made = Server(socket, process, Path(folder))
            code = "import numpy; print(numpy.random.rand())"
            drawn = {made.start(code).communicate("")[0] for _ in range(3)}
            assert len(drawn) == 3
        finally:
            process.kill()
            process.wait()


def test_only_this_user_may_connect(server: Server) -> None:
    assert server.socket.stat().st_mode & 0o777 == 0o600


def test_a_client_that_no_longer_waits_gets_no_program(server: Server) -> None:
    """It has started the program itself, and two workers of Ray must not have one id."""
    marks = server.folder / "marks"
    assert server.start("pass").wait() == 0  # it listens by now
    program = server.folder / "program.py"
    program.write_text(f"open({str(marks)!r}, 'a').write('x')")
    os.kill(server.process.pid, signal.SIGSTOP)
    asked = fork_client.ask(str(server.socket), str(program), [], os.environ, waits=False)
    assert asked is not None
    asked.close()
    os.kill(server.process.pid, signal.SIGCONT)
    assert server.start(f"open({str(marks)!r}, 'a').write('y')").wait() == 0
    assert marks.read_text() == "y"
