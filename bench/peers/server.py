"""Another model server, which runs on loopback for the length of a block."""

import json
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import psutil

from bench.http_load import HttpRequest, http_load
from bench.peers.models import Question
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
        goal: Triton's requests per second are to be so many times the peer's, with a small model.
    """

    name: str
    script: str
    ways: tuple[str, ...]
    path: str
    key: str
    goal: float


@dataclass(frozen=True)
class RunningPeer:
    """A peer that runs.

    Attributes:
        peer: the peer.
        home: its folder.
        request: what it is asked.
    """

    peer: Peer
    home: str
    request: HttpRequest


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
    body = json.dumps({peer.key: [question.row]}).encode()
    request = HttpRequest(HOST, free_ports(1)[0], peer.path, body)
    with tempfile.TemporaryDirectory(prefix="mr-peer-", ignore_cleanup_errors=True) as home:
        script, log = Path(__file__).parent / peer.script, Path(home) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(python), str(script), str(question.onnx), str(request.port), way],
                env=_environment(python, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends all others
            )
        try:
            question.check(peer.name, _wait_for_answer(peer, request, process, log))
            _warm_up(request)
            yield RunningPeer(peer, home, request)
        finally:
            _end(process, home)


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
    peer: Peer, request: HttpRequest, process: "subprocess.Popen[bytes]", log: Path
) -> object:
    deadline = time.monotonic() + START_SECONDS
    while True:
        with suppress(OSError, HTTPException):
            return request.send()
        if process.poll() is not None or time.monotonic() > deadline:
            raise WorkError(
                f"{peer.name} did not start",
                seen="\n".join(log.read_text(errors="replace").splitlines()[-8:]),
            )
        time.sleep(POLL_SECONDS)


def _warm_up(request: HttpRequest) -> None:
    """Send requests for a while; a new server may close connections, as HAProxy does."""
    for _ in range(WARM_UPS - 1):
        with suppress(ConnectionError):
            http_load(request, clients=WARM_UP_CLIENTS, seconds=WARM_UP_SECONDS)
            return
        time.sleep(POLL_SECONDS)
    http_load(request, clients=WARM_UP_CLIENTS, seconds=WARM_UP_SECONDS)


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
