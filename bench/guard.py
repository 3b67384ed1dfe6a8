"""G1, G8, G32: what the guard costs before Triton's HTTP, in requests per second and its own CPU.

Two servers serve the same small model, one behind its guard and one bare, and take turns. One
client shows the latency; many show the throughput, where all share the machine's cores.
"""

import json
import statistics
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial

import psutil

from bench.catalog import attempt
from bench.http_load import HttpLoad, http_load
from bench.rounds import in_turn, ratio
from bench.row import Row
from bench.server import Bench, batch_of, mlp, own_server
from millrace.models.config.serving_spec import ServingSpec

ROUNDS = 9
SECONDS = 1.0
WIDTH = 64
CLIENTS = {"G1": 1, "G8": 8, "G32": 32}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start a guarded and a bare Triton, measure the rows that are wanted, and stop both."""
    with ExitStack() as stack:
        guarded = stack.enter_context(own_server())
        bare = stack.enter_context(own_server(guarded=False))
        for each in (guarded, bare):
            onnx = mlp(each.repository.staging / "small.onnx", (WIDTH, 128, 10))
            each.serve("small", onnx, ServingSpec())
        for name, clients in CLIENTS.items():
            if name in wanted:
                yield attempt(name, partial(through_the_guard, name, clients, guarded, bare))


def through_the_guard(name: str, clients: int, guarded: Bench, bare: Bench) -> Row:
    """Compare requests per second of so many clients, and tell the guard's CPU for each of them."""
    process, cpu = guard_process(guarded), list[float]()

    def through() -> float:
        before = cpu_seconds(process)
        found = _load(guarded, clients)
        cpu.append(1e6 * (cpu_seconds(process) - before) / found.requests)
        return found.requests_per_second

    a, b = in_turn(through, lambda: _load(bare, clients).requests_per_second, ROUNDS)
    value = ratio(a, b)
    return Row(
        name=name,
        what=f"JSON by HTTP through the guard ÷ bare, requests/s of {clients} clients; the guard's "
        f"CPU is {statistics.median(cpu[1:]):.0f} µs a request",
        value=value,
        goal="none stated",
        holds=True,
        samples={"guarded_requests_per_s": a, "bare_requests_per_s": b, "guard_cpu_us": cpu[1:]},
    )


def guard_process(bench: Bench) -> psutil.Process:
    """Return the process of a server's guard, by the file of its configuration.

    Raises:
        LookupError: there is none.
    """
    file = f"guard-{bench.client.endpoint.http_port}.json"
    for process in psutil.process_iter(["cmdline"]):
        if any(word.endswith(file) for word in process.info["cmdline"] or ()):
            return process
    raise LookupError(f"no process was started with {file}")


def cpu_seconds(process: psutil.Process) -> float:
    """Return the seconds of CPU that a process has had."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _load(bench: Bench, clients: int) -> HttpLoad:
    endpoint, row = bench.client.endpoint, batch_of(WIDTH, 1)["x"]
    values = [round(float(value), 4) for value in row.ravel()]
    tensor = {"name": "x", "shape": [1, WIDTH], "datatype": "FP32", "data": values}
    body = json.dumps({"inputs": [tensor]}).encode()
    address = (endpoint.host, endpoint.http_port)
    return http_load(*address, "/v2/models/small/infer", body, clients=clients, seconds=SECONDS)
