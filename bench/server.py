"""A Triton of the benchmark's own, and the models that are measured on it."""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from bench.http_load import HttpLoad, HttpRequest, http_load
from bench.measure import quantile, time_calls
from millrace.models.common.digest import digest_of
from millrace.models.common.installation import ArrivalsKept, Installation
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.graph.triton_graph import artifact_of_graph, signature_of
from millrace.serving.triton.load_generator import measure
from millrace.serving.triton.model_config import latest, model_config
from millrace.serving.triton.repository import Repository
from tests.integration.ports import free_endpoint


@dataclass(frozen=True)
class Bench:
    """A running server, and its repository of models."""

    client: TritonClient
    repository: Repository

    def serve(self, model: str, onnx: Path, serving: ServingSpec, *, batching: bool = True) -> None:
        """Serve a file as version 1 of a model."""
        self.repository.stage(model, 1, artifact_of_graph(onnx, digest_of(onnx)))
        config = model_config(
            model,
            signature_of(self.repository.artifact(model, 1)),
            serving,
            version_policy=latest(),
            dynamic_batching=batching,
        )
        self.repository.write_config(config)
        self.client.load(model)

    def latency_ms(
        self, model: str, feed: Mapping[str, Any], share: float, seconds: float
    ) -> float:
        """Return a quantile of the latency of one client, in milliseconds.

        Args:
            model: a model that is loaded.
            feed: the request.
            share: of the quantile.
            seconds: how long to measure.
        """
        times = time_calls(lambda: self.client.predict(model, feed), seconds)
        return 1e3 * quantile(times, share)

    def request_rate(
        self, model: str, feed: Mapping[str, Any], clients: int, seconds: float
    ) -> Callable[[], float]:
        """Return a function that measures the requests per second of clients over gRPC."""
        return lambda: (
            measure(
                self.client.endpoint, model, feed, clients=clients, seconds=seconds
            ).requests_per_second
        )

    def http_request(self, model: str, row: list[float]) -> HttpRequest:
        """Return the request by HTTP that has a row as JSON."""
        endpoint = self.client.endpoint
        tensor = {"name": "x", "shape": [1, len(row)], "datatype": "FP32", "data": row}
        body = json.dumps({"inputs": [tensor]}).encode()
        return HttpRequest(endpoint.host, endpoint.http_port, f"/v2/models/{model}/infer", body)

    def load_over_http(
        self, model: str, row: list[float], clients: int, seconds: float
    ) -> HttpLoad:
        """Send a row as JSON from so many clients over HTTP, for so long."""
        return http_load(self.http_request(model, row), clients=clients, seconds=seconds)


@contextmanager
def own_server(*, guarded: bool = True, records_arrivals: bool = True) -> Iterator[Bench]:
    """Start a Triton of the benchmark's own on free ports, and stop it after the block."""
    kept = ArrivalsKept() if records_arrivals else ArrivalsKept(hours=0)
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as home:
        installation = Installation(Path(home), "", "", arrivals_kept=kept).prepared()
        with server.running(installation, free_endpoint(), guarded=guarded) as client:
            yield Bench(client, Repository(installation.model_repository, installation.staging))


def raw_session(onnx: Path) -> ort.InferenceSession:
    """Open a session like the backend's: one thread, on the CPU."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])


def batch_of(width: int, size: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return a random batch for `mlp`."""
    return {"x": np.random.default_rng(0).normal(size=(size, width)).astype(np.float32)}


def few_digits(row: npt.NDArray[np.float32]) -> list[float]:
    """Return the numbers of a row, rounded for JSON."""
    return [round(float(value), 4) for value in row.ravel()]


def mlp(path: Path, widths: tuple[int, ...], *, shares_weights: bool = False) -> Path:
    """Write a multilayer perceptron with random weights; layers of one shape may share them."""
    generator = np.random.default_rng(0)
    nodes, tensor = [], "x"
    weights: dict[str, TensorProto] = {}
    for layer, (fan_in, fan_out) in enumerate(zip(widths, widths[1:], strict=False)):
        last = layer == len(widths) - 2
        name = f"w{fan_in}x{fan_out}" if shares_weights else f"w{layer}"
        if name not in weights:
            values = generator.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in)
            weights[name] = numpy_helper.from_array(values.astype(np.float32), name)
        nodes.append(helper.make_node("MatMul", [tensor, name], [f"h{layer}"]))
        tensor = "y" if last else f"r{layer}"
        nodes.append(helper.make_node("Identity" if last else "Relu", [f"h{layer}"], [tensor]))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", widths[-1]])],
        list(weights.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path
