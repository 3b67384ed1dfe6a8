"""P11: requests per second of Triton through its guard ÷ those of other servers of models.

One small model, one row a request, JSON by HTTP, 32 clients, and one thread of ONNX Runtime on both
sides. Each other server is one server, run in every way that its documentation has for it; the way
in which it is fastest counts. Each answers what ONNX Runtime does in this process, and only one of
them runs at a time, beside Triton: Triton is measured while the other one is idle, and the other
way round.
"""

import json
import statistics
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.catalog import attempt
from bench.http_load import http_load
from bench.peers.environment import python_of_peers
from bench.peers.server import Asked, Peer, running
from bench.rounds import in_turn, ratio
from bench.row import Row, failed
from bench.server import Bench, batch_of, mlp, own_server, raw_session
from millrace.models.common.errors import WorkError
from millrace.models.config.serving_spec import ServingSpec

ROUNDS = 7
SECONDS = 1.5
CLIENTS = 32
WIDTHS = (64, 128, 10)
LITSERVE = ("one by one", "batches", "one by one, fast queue", "batches, fast queue")
BENTOML = ("one by one", "one by one, in threads", "batches")
PEERS = {
    "P11L": Peer("LitServe", "serve_litserve.py", LITSERVE, "/predict", "x", 10),
    "P11B": Peer("BentoML", "serve_bentoml.py", BENTOML, "/predict", "x", 12),
    "P11M": Peer("MLflow", "serve_mlflow.py", ("as it comes",), "/invocations", "inputs", 12),
    "P11R": Peer("Ray Serve", "serve_ray.py", ("as it comes", "high throughput"), "/", "x", 30),
}


@dataclass(frozen=True)
class Beside:
    """A way of running a peer, against Triton.

    Attributes:
        way: which.
        triton: requests per second, round by round.
        peer: likewise.
    """

    way: str
    triton: list[float]
    peer: list[float]

    @property
    def ratio(self) -> float:
        """Triton's requests per second ÷ the peer's."""
        return ratio(self.triton, self.peer)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Install the other servers, start a guarded Triton, and measure the rows that are wanted."""
    try:
        python = python_of_peers()
    except WorkError as error:
        yield from (failed(name, str(error)) for name in PEERS if name in wanted)
        return
    with ExitStack() as stack:
        triton = stack.enter_context(own_server())
        onnx = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "small.onnx"
        triton.serve("small", mlp(onnx, WIDTHS), ServingSpec())
        asked = _asked(onnx)
        for name, peer in PEERS.items():
            if name in wanted:
                yield attempt(name, partial(beside, name, peer, python, triton, asked))


def beside(name: str, peer: Peer, python: Path, triton: Bench, asked: Asked) -> Row:
    """Measure every way of a peer against Triton, and return the row of the best one."""
    found = [_measured(peer, way, python, triton, asked) for way in peer.ways]
    best = min(found, key=lambda each: each.ratio)
    return Row(
        name=name,
        what=f"Triton through the guard ÷ {peer.name}, requests/s of {CLIENTS} clients, "
        f"{peer.name} {best.way}",
        value=best.ratio,
        goal=f"≥ {peer.goal:g}",
        holds=best.ratio >= peer.goal,
        samples={
            **{f"triton_requests_per_s, {each.way}": each.triton for each in found},
            **{f"peer_requests_per_s, {each.way}": each.peer for each in found},
        },
        details=_table(peer, found),
    )


def _measured(peer: Peer, way: str, python: Path, triton: Bench, asked: Asked) -> Beside:
    with running(peer, way, python, asked) as other:
        a, b = in_turn(
            partial(_through_the_guard, triton, asked),
            lambda: other.load(CLIENTS, SECONDS).requests_per_second,
            ROUNDS,
        )
    return Beside(way, a, b)


def _through_the_guard(triton: Bench, asked: Asked) -> float:
    endpoint = triton.client.endpoint
    tensor = {"name": "x", "shape": [1, WIDTHS[0]], "datatype": "FP32", "data": asked.row}
    body = json.dumps({"inputs": [tensor]}).encode()
    address = (endpoint.host, endpoint.http_port, "/v2/models/small/infer")
    return http_load(*address, body, clients=CLIENTS, seconds=SECONDS).requests_per_second


def _asked(onnx: Path) -> Asked:
    """Return a row of few digits, and the answer of ONNX Runtime in this process."""
    row = batch_of(WIDTHS[0], 1)["x"].round(4)
    answer = raw_session(onnx).run(None, {"x": row})[0]
    return Asked(onnx, [round(float(value), 4) for value in row.ravel()], answer.ravel().tolist())


def _table(peer: Peer, found: list[Beside]) -> str:
    head = f"| {peer.name} | its requests/s | Triton's | ratio |\n|---|---:|---:|---:|"
    lines = [
        f"| {each.way} | {statistics.median(each.peer):.0f} | {statistics.median(each.triton):.0f} "
        f"| {each.ratio:.1f} |"
        for each in found
    ]
    return "\n".join([head, *lines])
