"""The load of HTTP clients by wrk, a native program; where it is missing, by clients in Python.

Clients in Python need more CPU time for each request, and the faster server lacks it most.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.http_load import HttpRequest, http_load
from bench.measure import quantile

WRK = "wrk"
SCRIPT = Path(__file__).with_name("wrk.lua")
TIMEOUT = "60s"
"""Time after which wrk counts an answer as missing."""


@dataclass(frozen=True)
class LoadResult:
    """What clients saw that each wait for their answer.

    Attributes:
        requests_per_second: answers with 200.
        p50_ms: median latency.
        p99_ms: 99th percentile of the latency.
        errors: other answers, connections that ended, and answers that were missing.
    """

    requests_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


def name_client() -> str:
    """Return which client measures here, with its version."""
    if shutil.which(WRK) is None:
        return "clients in Python, as wrk is not installed"
    # It prints its version as the first line of its usage, which it calls a failure.
    shown = subprocess.run([WRK, "-v"], capture_output=True, text=True, check=False)
    return " ".join((shown.stdout + shown.stderr).split()[:2])


def measure_load(request: HttpRequest, clients: int, seconds: int) -> LoadResult:
    """Send the same request from so many clients, for so long.

    Args:
        request: the request.
        clients: each waits for its answer and sends the next request.
        seconds: a whole number, which wrk needs.

    Raises:
        ConnectionError: nothing was answered; without wrk, also if one answer was not 200.
    """
    if shutil.which(WRK) is not None:
        return _run_wrk(request, clients, seconds)
    load = http_load(request, clients=clients, seconds=seconds)
    p50, p99 = (1e3 * quantile(load.latencies, share) for share in (0.5, 0.99))
    return LoadResult(load.requests_per_second, p50, p99, errors=0)


def _run_wrk(request: HttpRequest, clients: int, seconds: int) -> LoadResult:
    options = {"threads": "1", "connections": str(clients), "duration": f"{seconds}s"}
    options |= {"timeout": TIMEOUT, "script": str(SCRIPT)}
    url = f"http://{request.host}:{request.port}{request.path}"
    argv = [WRK, *(f"--{key}={value}" for key, value in options.items()), url, "--"]
    done = subprocess.run([*argv, request.body.decode()], capture_output=True, text=True)
    if done.returncode != 0:
        raise ConnectionError(f"wrk failed: {(done.stderr or done.stdout).strip()}")
    return read_wrk(done.stdout)


def read_wrk(output: str) -> LoadResult:
    """Return what wrk saw, from what it and its script printed.

    Raises:
        ConnectionError: nothing was answered with 200.
    """
    seen = json.loads(output.splitlines()[-1])
    answered = seen["answers"] - seen["refused"]
    if answered <= 0:
        raise ConnectionError(f"wrk got no answer with 200: {seen}")
    return LoadResult(
        requests_per_second=1e6 * answered / seen["us"],
        p50_ms=seen["p50_us"] / 1e3,
        p99_ms=seen["p99_us"] / 1e3,
        errors=seen["refused"] + seen["unanswered"],
    )
