"""G1, G8, G32: the cost of the guard before Triton's HTTP, in requests per second and in CPU time.

Two servers serve the same small model, one behind its guard and one bare, and take turns. One
client shows the latency; many clients, which share the machine's cores, show the throughput.
"""

import statistics
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from functools import partial

import psutil

from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import Bench, batch_of, few_digits, mlp, own_server
from millrace.models.config.serving_spec import ServingSpec

ROUNDS = 9
SECONDS = 1.0
WIDTH = 64
CLIENTS = {"G1": 1, "G8": 8, "G32": 32}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on a guarded and a bare Triton."""
    with ExitStack() as stack:
        guarded = stack.enter_context(own_server())
        bare = stack.enter_context(own_server(guarded=False))
        for each in (guarded, bare):
            onnx = mlp(each.repository.staging / "small.onnx", (WIDTH, 128, 10))
            each.serve("small", onnx, ServingSpec())
        measures = {
            name: partial(through_the_guard, name, clients, guarded, bare)
            for name, clients in CLIENTS.items()
        }
        yield from measure_rows(measures, wanted)


def through_the_guard(name: str, clients: int, guarded: Bench, bare: Bench) -> Row:
    """Compare the requests per second of so many clients, and measure the guard's CPU time."""
    process, cpu = find_guard(guarded), list[float]()
    row = few_digits(batch_of(WIDTH, 1)["x"])

    def through() -> float:
        before = cpu_seconds(process)
        load = guarded.load_over_http("small", row, clients, SECONDS)
        cpu.append(1e6 * (cpu_seconds(process) - before) / load.requests)
        return load.requests_per_second

    def directly() -> float:
        return bare.load_over_http("small", row, clients, SECONDS).requests_per_second

    rounds = measure_in_turn(through, directly, ROUNDS)
    return Row(
        name=name,
        what=f"JSON by HTTP through the guard ÷ bare, requests/s of {clients} clients; the guard's "
        f"CPU is {statistics.median(cpu[1:]):.0f} µs a request",
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
