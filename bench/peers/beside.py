"""P11: requests per second of Triton through its guard ÷ those of other model servers.

One small model, one row a request, JSON by HTTP, 32 clients, and one thread of ONNX Runtime on both
sides. Each peer is one server, run in every way that its documentation has for it; the fastest way
counts. Each must answer what ONNX Runtime answers in this process. Only one peer runs at a time,
beside Triton: either is measured while the other one is idle. The peers have an environment of
their own, which is installed once from PyPI.
"""

import statistics
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.http_clients import measure_load, name_client
from bench.measure import Rounds, Row, failed_row, measure_in_turn, measure_rows
from bench.peers.environment import install_peers
from bench.peers.models import Question, small_model
from bench.peers.server import Peer, run_peer
from bench.server import Bench, own_server
from millrace.models.common.errors import WorkError
from millrace.models.config.serving_spec import ServingSpec

ROUNDS = 7
SECONDS = 2
CLIENTS = 32
LITSERVE = ("one by one", "batches", "one by one, fast queue", "batches, fast queue")
BENTOML = ("one by one", "one by one, in threads", "batches")
PEERS = {
    "P11L": Peer("LitServe", "serve_litserve.py", LITSERVE, "/predict", "x", 10),
    "P11B": Peer("BentoML", "serve_bentoml.py", BENTOML, "/predict", "x", 12),
    "P11M": Peer("MLflow", "serve_mlflow.py", ("as it comes",), "/invocations", "inputs", 12),
    "P11R": Peer("Ray Serve", "serve_ray.py", ("as it comes", "high throughput"), "/", "x", 30),
}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Install the peers, and measure the wanted rows beside a guarded Triton."""
    try:
        python = install_peers()
    except WorkError as error:
        yield from (failed_row(name, str(error)) for name in PEERS if name in wanted)
        return
    with ExitStack() as stack:
        triton = stack.enter_context(own_server())
        question = small_model(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        triton.serve("small", question.onnx, ServingSpec())
        question.check(
            "Triton", triton.http_request("small", question.row).send()["outputs"][0]["data"]
        )
        measures = {
            name: partial(beside, name, peer, python, triton, question)
            for name, peer in PEERS.items()
        }
        yield from measure_rows(measures, wanted)


def beside(name: str, peer: Peer, python: Path, triton: Bench, question: Question) -> Row:
    """Measure every way of a peer against Triton, and return the row of the best one."""
    found = {way: _measure_way(peer, way, python, triton, question) for way in peer.ways}
    best = min(found, key=lambda way: found[way].ratio)
    return Row(
        name=name,
        what=f"Triton through the guard ÷ {peer.name}, requests/s of {CLIENTS} clients, "
        f"{peer.name} {best}",
        value=found[best].ratio,
        goal=f"≥ {peer.goal:g}",
        holds=found[best].ratio >= peer.goal,
        samples={
            **{f"triton_requests_per_s, {way}": rounds.a for way, rounds in found.items()},
            **{f"peer_requests_per_s, {way}": rounds.b for way, rounds in found.items()},
        },
        details=f"Clients: {name_client()}.\n\n{_table(peer, found)}",
    )


def _measure_way(peer: Peer, way: str, python: Path, triton: Bench, question: Question) -> Rounds:
    request = triton.http_request("small", question.row)
    with run_peer(peer, way, python, question) as other:
        through_the_guard, theirs = (
            partial(measure_load, each, CLIENTS, SECONDS) for each in (request, other.request)
        )
        return measure_in_turn(
            lambda: through_the_guard().requests_per_second,
            lambda: theirs().requests_per_second,
            ROUNDS,
        )


def _table(peer: Peer, found: Mapping[str, Rounds]) -> str:
    head = f"| {peer.name} | its requests/s | Triton's | ratio |\n|---|---:|---:|---:|"
    lines = [
        f"| {way} | {statistics.median(rounds.b):.0f} | {statistics.median(rounds.a):.0f} "
        f"| {rounds.ratio:.1f} |"
        for way, rounds in found.items()
    ]
    return "\n".join([head, *lines])
