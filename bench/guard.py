"""G1, G8, G32, G1R, G32R: the cost of the guard before Triton, in requests/s and in CPU time.

Two servers serve the same small model, one behind its guard and one bare, and take turns. One
client shows the latency; many clients, which share the machine's cores, show the throughput. The
first three send JSON over HTTP, the other two gRPC, whose client takes more of the cores itself.
"""

import statistics
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial

import psutil

from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import Bench, batch_of, few_digits, mlp, own_server
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.load_generator import measure

ROUNDS = 9
SECONDS = 1.0
WIDTH = 64
MODEL = "small"
HTTP_CLIENTS = {"G1": 1, "G8": 8, "G32": 32}
GRPC_CLIENTS = {"G1R": 1, "G32R": 32}
Load = Callable[[Bench], tuple[int, float]]
"""Sends requests to a server; returns their number, and the requests per second."""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on a guarded and a bare Triton."""
    with ExitStack() as stack:
        guarded = stack.enter_context(own_server())
        bare = stack.enter_context(own_server(guarded=False))
        for each in (guarded, bare):
            onnx = mlp(each.repository.staging / "small.onnx", (WIDTH, 128, 10))
            each.serve(MODEL, onnx, ServingSpec())
        loads = [
            *((name, "JSON by HTTP", many, load_http) for name, many in HTTP_CLIENTS.items()),
            *((name, "gRPC", many, load_grpc) for name, many in GRPC_CLIENTS.items()),
        ]
        measures = {
            name: partial(
                through_the_guard,
                name,
                f"{what}, clients: {many}",
                partial(load, many),
                guarded,
                bare,
            )
            for name, what, many, load in loads
        }
        yield from measure_rows(measures, wanted)


def load_http(clients: int, bench: Bench) -> tuple[int, float]:
    """Send a row as JSON over HTTP."""
    row = few_digits(batch_of(WIDTH, 1)["x"])
    load = bench.load_over_http(MODEL, row, clients, SECONDS)
    return load.requests, load.requests_per_second


def load_grpc(clients: int, bench: Bench) -> tuple[int, float]:
    """Send a row over gRPC."""
    feed = batch_of(WIDTH, 1)
    load = measure(bench.client.endpoint, MODEL, feed, clients=clients, seconds=SECONDS)
    return load.requests, load.requests_per_second


def through_the_guard(name: str, what: str, load: Load, guarded: Bench, bare: Bench) -> Row:
    """Compare the requests per second of a load, and measure the guard's CPU time."""
    process, cpu = find_guard(guarded), list[float]()

    def through() -> float:
        before = cpu_seconds(process)
        requests, rate = load(guarded)
        cpu.append(1e6 * (cpu_seconds(process) - before) / requests)
        return rate

    rounds = measure_in_turn(through, lambda: load(bare)[1], ROUNDS)
    return Row(
        name=name,
        what=f"requests/s through the guard ÷ bare, {what}; the guard's CPU is "
        f"{statistics.median(cpu[1:]):.0f} µs a request",
        value=rounds.ratio,
        goal="none stated",
        holds=True,
        samples={
            "guarded_requests_per_s": rounds.a,
            "bare_requests_per_s": rounds.b,
            "guard_cpu_us": cpu[1:],
        },
    )


def find_guard(bench: Bench) -> psutil.Process:
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
    """Return the CPU time of a process, in seconds."""
    times = process.cpu_times()
    return float(times.user + times.system)
