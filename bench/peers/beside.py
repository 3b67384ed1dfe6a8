"""P11: requests per second of Triton through its guard ÷ those of other model servers.

One row a request, JSON by HTTP, and one thread of ONNX Runtime on each side, with a small model and
with one that takes about 5 ms. Each peer is one server, run in every way that its documentation
has for it; the way that is fastest with the same model and 32 clients counts, and only this way is
measured beside Triton. Each must answer what ONNX Runtime answers in this process. Only one peer
runs at a time: it, Triton behind its guard and Triton past it take turns at each number of clients.
"""

import statistics
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.http_clients import measure_load, name_client
from bench.measure import Row, failed_row, measure_rows
from bench.peers.environment import install_peers
from bench.peers.levels import CLIENTS, format_table, list_samples, measure_level
from bench.peers.server import Peer, run_peer
from bench.peers.triton import GOAL, GUARDED, PROFILED, ServedModel, TritonSide
from bench.server import own_server
from millrace.models.common.errors import WorkError

SHOWN = 32
"""How many clients decide on a peer's way, and give a row its value."""
ROUNDS = 3
SLOW, SLOW_GOAL = "5", 1.2
"""The end of a row's name with the model of 5 ms, and the row's goal."""
LITSERVE = ("one by one", "batches", "one by one, fast queue", "batches, fast queue")
BENTOML = ("one by one", "one by one, in threads", "batches")
RAY = ("as it comes", "high throughput", "high throughput, batches")
PEERS = {
    "P11L": Peer("LitServe", "serve_litserve.py", LITSERVE, "/predict", "x", 10),
    "P11B": Peer("BentoML", "serve_bentoml.py", BENTOML, "/predict", "x", 12),
    "P11M": Peer("MLflow", "serve_mlflow.py", ("as it comes",), "/invocations", "inputs", 12),
    "P11R": Peer("Ray Serve", "serve_ray.py", RAY, "/", "x", 30),
}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Install the peers, and measure the wanted rows beside two Tritons."""
    try:
        python = install_peers()
    except WorkError as error:
        names = [each for name in PEERS for each in (name, name + SLOW)]
        yield from (failed_row(name, str(error)) for name in names if name in wanted)
        return
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-bench-"))
        guarded, bare = (stack.enter_context(own_server(guarded=each)) for each in (True, False))
        triton = TritonSide(guarded, bare, Path(folder))
        measures = {}
        for name, peer in PEERS.items():
            for row, slow in ((name, False), (name + SLOW, True)):
                measures[row] = partial(compare, row, peer, python, triton, slow=slow)
        yield from measure_rows(measures, wanted)


def compare(name: str, peer: Peer, python: Path, triton: TritonSide, *, slow: bool) -> Row:
    """Measure a peer's ways, and the fastest one beside both Tritons.

    Args:
        name: of the row.
        peer: the peer.
        python: has the packages of all peers.
        triton: both Tritons.
        slow: whether they serve the model of 5 ms; if False, the small one.
    """
    model, goal = (triton.slow, SLOW_GOAL) if slow else (triton.small, peer.goal)
    ways = measure_ways(peer, python, model)
    with run_peer(peer, next(iter(ways)), python, model.question) as running:
        servers = {peer.name: running.request, **model.servers}
        levels = {each: measure_level(servers, each, ROUNDS, model.seconds) for each in CLIENTS}
    ratio = levels[SHOWN].ratio(GUARDED, peer.name)
    errors = sum(level.errors(each) for level in levels.values() for each in model.servers)
    return Row(
        name=name,
        what=f"Triton through the guard ÷ {peer.name}, requests/s of {SHOWN} clients, "
        f"{model.question.about}",
        value=ratio,
        goal=f"≥ {goal:g}, and no errors of Triton",
        holds=ratio >= goal and errors == 0,
        samples={
            **{f"{way}, requests_per_second": rates for way, rates in ways.items()},
            **list_samples(levels.values()),
        },
        details=f"{_describe(peer, ways, model)}\n\n{format_table(levels.values(), peer.name)}",
    )


def measure_ways(peer: Peer, python: Path, model: ServedModel) -> dict[str, list[float]]:
    """Return the requests per second of each way of a peer; the fastest way comes first."""
    rates = {}
    for way in peer.ways:
        with run_peer(peer, way, python, model.question) as running:
            loads = [measure_load(running.request, SHOWN, model.seconds) for _ in range(ROUNDS)]
        rates[way] = [each.requests_per_second for each in loads]
    return dict(sorted(rates.items(), key=lambda each: -statistics.median(each[1])))


def _describe(peer: Peer, ways: Mapping[str, Sequence[float]], model: ServedModel) -> str:
    """Return who measures what, in sentences."""
    found = [f"{way} {statistics.median(rates):.0f}" for way, rates in ways.items()]
    lines = [
        f"Clients: {name_client()}.",
        f"Requests/s of {peer.name} with {SHOWN} clients: {', '.join(found)}. The first way is in "
        "the table.",
    ]
    if model.profiled is not None:
        lines.append(
            f"{PROFILED} is what `millrace profile` chooses for {GOAL.rate:g} requests/s and a p99 "
            f"of {GOAL.p99_ms:g} ms: {model.profiled}."
        )
    return "\n".join(lines)
