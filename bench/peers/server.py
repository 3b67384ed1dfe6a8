"""Another model server, which runs on loopback for the length of a block."""

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
"""A variable that marks the processes of a peer, also those that have lost their parent."""


@dataclass(frozen=True)
class Peer:
    """Another server, and the ways of running it that its documentation has.

    Attributes:
        name: its own name.
        script: the program that starts it, beside this file.
        ways: the ways, in the script's words; the best one counts.
        path: of its HTTP endpoint.
        key: of the rows in the JSON of a request.
        goal: Triton's requests per second are to be so many times the peer's.
    """

    name: str
    script: str
    ways: tuple[str, ...]
    path: str
    key: str
    goal: float


@dataclass(frozen=True)
class Question:
    """The request to all servers, and the right answer.

    Attributes:
        onnx: the model.
        row: the numbers of one row.
        answer: of ONNX Runtime in this process.
    """

    onnx: Path
    row: list[float]
    answer: list[float]


@dataclass(frozen=True)
class RunningPeer:
    """A peer that runs.

    Attributes:
        peer: the peer.
        port: its port.
        home: its folder.
        body: of the requests.
    """

    peer: Peer
    port: int
    home: str
    body: bytes

    def answer(self) -> list[float]:
        """Send one request, and return the numbers of the answer."""
        request = urllib.request.Request(
            f"http://{HOST}:{self.port}{self.peer.path}",
            self.body,
            {"Content-Type": "application/json"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            return find_numbers(json.load(response))

    def load(self, clients: int, seconds: float) -> HttpLoad:
        """Send requests from so many clients for so long."""
        return http_load(
            HOST, self.port, self.peer.path, self.body, clients=clients, seconds=seconds
        )


@contextmanager
def run_peer(peer: Peer, way: str, python: Path, question: Question) -> Iterator[RunningPeer]:
    """Run a peer that answers like ONNX Runtime, and end all its processes after the block.

    Args:
        peer: the peer.
        way: one of its ways.
        python: has the packages of all peers.
        question: the model, and the request to it.

    Raises:
        WorkError: it does not answer in time, or its answer is wrong.
    """
    port, body = free_ports(1)[0], json.dumps({peer.key: [question.row]}).encode()
    with tempfile.TemporaryDirectory(prefix="mr-peer-", ignore_cleanup_errors=True) as home:
        script, log = Path(__file__).parent / peer.script, Path(home) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(python), str(script), str(question.onnx), str(port), way],
                env=_environment(python, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends all others
            )
        try:
            started = RunningPeer(peer, port, home, body)
            _wait_for_answer(started, process, log, question.answer)
            _warm_up(started)
            yield started
        finally:
            _end(process, home)


def find_numbers(value: object) -> list[float]:
    """Return the numbers of a JSON value, in their order."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in find_numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in find_numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []


def _environment(python: Path, home: str) -> dict[str, str]:
    """Return all variables of a peer: none of this process, no access log, and its own home."""
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


def _wait_for_answer(
    started: RunningPeer, process: "subprocess.Popen[bytes]", log: Path, expected: list[float]
) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with suppress(OSError, HTTPException):
            found = started.answer()
            break
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


def _warm_up(started: RunningPeer) -> None:
    """Send requests for a while; a new server may close connections, as HAProxy does."""
    for _ in range(WARM_UPS - 1):
        with suppress(ConnectionError):
            started.load(WARM_UP_CLIENTS, WARM_UP_SECONDS)
            return
        time.sleep(POLL_SECONDS)
    started.load(WARM_UP_CLIENTS, WARM_UP_SECONDS)


def _end(process: "subprocess.Popen[bytes]", home: str) -> None:
    """Terminate a peer, and kill the processes that are left of it."""
    # A process of Ray that sets its title for `ps` overwrites its variables.
    children = _children(process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    while left := {*_find_marked(home), *(each for each in children if each.is_running())}:
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(left, timeout=POLL_SECONDS)


def _children(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _find_marked(home: str) -> list[psutil.Process]:
    """Return the processes of a peer that are left."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get(MARK) == home:
                found.append(each)
    return found
