"""P1 to P3: what Triton costs beside ONNX Runtime in process, and what dynamic batching gives.

A and B take turns in one run on one machine. Both sides have one ONNX Runtime thread, so a ratio
tells of the serving and not of the number of cores.
"""

import secrets
import socket
import statistics
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench.catalog import attempt
from bench.offline_client import OfflineClient
from bench.rounds import difference, in_turn, quantile, ratio, timed
from bench.row import Row
from models.pipeline import ServingSpec
from models.places import Endpoint, Places
from serving import triton
from serving.client import TritonClient
from serving.config import latest, model_config
from serving.load import measure
from serving.repository import Artifact, Repository, digest_of

ROUNDS = 15
SECONDS = 0.6
IN_FLIGHT = 3


@dataclass(frozen=True)
class Bench:
    """A running server, and what puts models on it."""

    client: TritonClient
    repository: Repository

    def serve(self, model: str, onnx: Path, serving: ServingSpec, *, batching: bool = True) -> None:
        """Serve a file as version 1 of a model."""
        self.repository.stage(model, 1, Artifact(onnx, digest_of(onnx)))
        config = model_config(
            model,
            self.repository.signature(model, 1),
            serving,
            version_policy=latest(),
            dynamic_batching=batching,
        )
        self.repository.write_config(config)
        self.client.load(model)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Start a Triton of our own, measure P1, P2 and P3 where wanted, and stop it."""
    measures = {
        "P1": offline_throughput,
        "P2": single_client_latency,
        "P3": dynamic_batching_gain,
    }
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as home, _bench(Path(home)) as bench:
        for name, measure_row in measures.items():
            if name in wanted:
                yield attempt(name, partial(measure_row, bench))


def offline_throughput(bench: Bench, batch: int = 512) -> Row:
    """P1: rows per second of full batches, against the session in this process.

    The client is one that wants throughput: it shares the server's machine and hands tensors over
    by system shared memory, and a request always waits at the server while another is computed.
    """
    widths = (256, 1024, 1024, 1024, 10)
    onnx = mlp(bench.repository.staging / "offline.onnx", widths)
    bench.serve("offline", onnx, ServingSpec(max_batch_size=batch))
    session, feed = raw_session(onnx), batch_of(256, batch)

    def in_process() -> float:
        return batch / statistics.mean(timed(lambda: session.run(None, feed), SECONDS))

    answer = {"y": (batch, widths[-1])}
    with OfflineClient(bench.client.endpoint, "offline", feed, answer, IN_FLIGHT) as client:
        a, b = in_turn(lambda: client.rows_per_second(SECONDS), in_process, ROUNDS)
    value = ratio(a, b)
    milliseconds = 1e3 * batch / statistics.median(b)
    return Row(
        name="P1",
        what=f"Triton offline rows/s ÷ in-process ONNX Runtime, {milliseconds:.0f} ms a batch",
        value=value,
        goal="≥ 0.90",
        holds=value >= 0.90,
        samples={"triton_rows_per_s": a, "in_process_rows_per_s": b},
    )


def single_client_latency(bench: Bench) -> Row:
    """P2: what one client waits longer for Triton than for the session in this process."""
    onnx = mlp(bench.repository.staging / "single.onnx", (64, 128, 10))
    bench.serve("single", onnx, ServingSpec())
    session, feed = raw_session(onnx), batch_of(64, 1)

    def served() -> float:
        return 1e3 * quantile(timed(lambda: bench.client.predict("single", feed), SECONDS), 0.9)

    def in_process() -> float:
        return 1e3 * quantile(timed(lambda: session.run(None, feed), SECONDS), 0.9)

    a, b = in_turn(served, in_process, ROUNDS)
    value = difference(a, b)
    return Row(
        name="P2",
        what="one client, served p90 − raw p90, ms",
        value=value,
        goal="≤ 1 ms",
        holds=value <= 1.0,
        samples={"served_p90_ms": a, "raw_p90_ms": b},
    )


def dynamic_batching_gain(bench: Bench, clients: int = 16) -> Row:
    """P3: requests per second of single rows, with dynamic batching against without."""
    onnx = mlp(bench.repository.staging / "dynamic.onnx", (256, 2048, 2048, 10))
    bench.serve("batching_on", onnx, ServingSpec(max_batch_size=clients))
    bench.serve("batching_off", onnx, ServingSpec(max_batch_size=clients), batching=False)
    feed = batch_of(256, 1)

    def rate(model: str) -> Callable[[], float]:
        return lambda: (
            measure(
                bench.client.endpoint, model, feed, clients=clients, seconds=SECONDS
            ).requests_per_second
        )

    a, b = in_turn(rate("batching_on"), rate("batching_off"), ROUNDS)
    value = ratio(a, b)
    return Row(
        name="P3",
        what=f"dynamic batching on ÷ off, {clients} clients, requests/s",
        value=value,
        goal="≥ 1.5",
        holds=value >= 1.5,
        samples={"on_requests_per_s": a, "off_requests_per_s": b},
    )


def raw_session(onnx: Path) -> ort.InferenceSession:
    """Open the session that the backend opens: one thread, on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])


def batch_of(width: int, size: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return a random batch for `mlp`."""
    return {"x": np.random.default_rng(0).normal(size=(size, width)).astype(np.float32)}


def mlp(path: Path, widths: tuple[int, ...]) -> Path:
    """Write a multilayer perceptron with random weights."""
    generator = np.random.default_rng(0)
    nodes, weights, tensor = [], [], "x"
    for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:], strict=False)):
        last = layer == len(widths) - 2
        values = generator.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [tensor, f"w{layer}"], [f"h{layer}"]))
        tensor = "y" if last else f"r{layer}"
        nodes.append(helper.make_node("Identity" if last else "Relu", [f"h{layer}"], [tensor]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", widths[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@contextmanager
def _bench(home: Path) -> Iterator[Bench]:
    places = Places(home, "", "").prepared()
    with triton.running(places, _free_endpoint()) as client:
        yield Bench(client, Repository(places.model_repository, places.staging))


def _free_endpoint() -> Endpoint:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        http, grpc, metrics = (each.getsockname()[1] for each in sockets)
    return Endpoint("127.0.0.1", http, grpc, metrics, token=secrets.token_hex(32))
