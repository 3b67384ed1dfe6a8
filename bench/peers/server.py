"""Another server of models, as a process of ours on loopback, for the length of a block."""

import json
import os
import secrets
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import numpy as np
import psutil

from bench.http_load import HttpLoad, http_load
from millrace.models.common.errors import WorkError
from tests.integration.ports import free_ports

HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 120.0, 15.0, 0.2
WARM_UPS, WARM_UP_CLIENTS, WARM_UP_SECONDS = 10, 32, 2.0
MARK = "MILLRACE_BENCH_PEER"
"""A variable by which processes of a peer are found, whoever their parent is by then."""


@dataclass(frozen=True)
class Peer:
    """Another server, and the ways of running it that its documentation has.

    Attributes:
        name: as it calls itself.
        script: what starts it, beside this file.
        ways: the scripts' words for them; the best one counts.
        path: where it answers.
        key: of the rows in the JSON of a request.
        goal: how many times its requests per second Triton is to answer.
    """

    name: str
    script: str
    ways: tuple[str, ...]
    path: str
    key: str
    goal: float


@dataclass(frozen=True)
class Asked:
    """What all servers are asked.

    Attributes:
        onnx: the model.
        row: the numbers of one row.
        answer: what ONNX Runtime answers in this process.
    """

    onnx: Path
    row: list[float]
    answer: list[float]


@dataclass(frozen=True)
class Running:
    """A peer that answers.

    Attributes:
        peer: which.
        port: where.
        home: its folder.
        body: the request that is sent.
    """

    peer: Peer
    port: int
    home: str
    body: bytes

    def answer(self) -> list[float]:
        """Ask once, and return the numbers of the answer."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{self.peer.path}",
            self.body,
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            return numbers_in(json.load(response))

    def load(self, clients: int, seconds: float) -> HttpLoad:
        """Ask from so many clients for so long."""
        return http_load(
            HOST, self.port, self.peer.path, self.body, clients=clients, seconds=seconds
        )


@contextmanager
def running(peer: Peer, way: str, python: Path, asked: Asked) -> Iterator[Running]:
    """Run a peer, and wait until it answers what ONNX Runtime does; then end all its processes.

    Args:
        peer: which server.
        way: one of its ways.
        python: has the packages of all of them.
        asked: the model, and what to ask it.

    Raises:
        WorkError: it does not answer in time, or something else.
    """
    port, body = free_ports(1)[0], json.dumps({peer.key: [asked.row]}).encode()
    with tempfile.TemporaryDirectory(prefix="mr-peer-", ignore_cleanup_errors=True) as home:
        script, log = Path(__file__).parent / peer.script, Path(home) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(python), str(script), str(asked.onnx), str(port), way],
                env=_environment(python, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end it with its children
            )
        try:
            started = Running(peer, port, home, body)
            _wait_until_right(started, process, log, asked.answer)
            _warm_up(started)
            yield started
        finally:
            _end(process, home)


def numbers_in(value: object) -> list[float]:
    """Return the numbers of a JSON value, in their order."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in numbers_in(each)]
    if isinstance(value, list):
        return [number for each in value for number in numbers_in(each)]
    return [float(value)] if isinstance(value, int | float) else []


def _environment(python: Path, home: str) -> dict[str, str]:
    """Return all variables of a peer: none of ours, no log of calls, and a home that is deleted."""
    return {
        "PATH": os.pathsep.join([str(python.parent), os.defpath]),
        "HOME": home,
        "TMPDIR": home,
        "OMP_NUM_THREADS": "1",
        "UVICORN_ACCESS_LOG": "false",
        "BENTOML_DO_NOT_TRACK": "True",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        MARK: home,
    }


def _wait_until_right(
    started: Running, process: "subprocess.Popen[bytes]", log: Path, expected: list[float]
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while (found := _answer(started)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise WorkError(
                f"{started.peer.name} did not start",
                seen="\n".join(log.read_text(errors="replace").splitlines()[-8:]),
            )
        time.sleep(POLL_SECONDS)
    if len(found) != len(expected) or not np.allclose(found, expected, atol=1e-5):
        raise WorkError(
            f"{started.peer.name} answers something else than ONNX Runtime in this process",
            seen=found,
            valid=expected,
        )


def _answer(started: Running) -> list[float] | None:
    with suppress(OSError, HTTPException):
        return started.answer()
    return None


def _warm_up(started: Running) -> None:
    """Ask for a while; a server that has just started may close connections, as HAProxy does."""
    for _ in range(WARM_UPS - 1):
        with suppress(ConnectionError):
            started.load(WARM_UP_CLIENTS, WARM_UP_SECONDS)
            return
        time.sleep(POLL_SECONDS)
    started.load(WARM_UP_CLIENTS, WARM_UP_SECONDS)


def _end(process: "subprocess.Popen[bytes]", home: str) -> None:
    """End a peer in order, and by force what is left of it."""
    # Those of Ray that write a title for `ps` write it over their variables.
    children = _children(process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    while left := {*_marked(home), *(each for each in children if each.is_running())}:
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=POLL_SECONDS)


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _marked(home: str) -> list[psutil.Process]:
    """Return the processes of a peer that are left."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(MARK) == home:
                found.append(each)
    return found
