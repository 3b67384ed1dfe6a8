"""A Triton behind its guard, with a model whose answers anybody can work out, and raw requests."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from millrace.models.common.digest import digest_of
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.graph.triton_graph import artifact_of_graph, signature_of
from millrace.serving.triton.model_config import latest, model_config
from millrace.serving.triton.repository import Repository
from tests.integration.graphs import FLOAT, proto
from tests.integration.ports import free_endpoint

INFER = "/v2/models/sums/infer"


@dataclass(frozen=True)
class Answer:
    """What came back by HTTP."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Stand:
    """The server, and how it is reached."""

    installation: Installation
    endpoint: Endpoint
    client: TritonClient

    def ask(
        self,
        body: bytes | str | dict[str, Any] = b"",
        path: str = INFER,
        headers: Mapping[str, str] | None = None,
        method: str = "POST",
        port: int | None = None,
    ) -> Answer:
        """Send one request as it is, on a connection of its own."""
        whole = json.dumps(body).encode() if isinstance(body, dict) else body
        whole = whole.encode() if isinstance(whole, str) else whole
        address = (self.endpoint.host, port or self.endpoint.http_port)
        connection = http.client.HTTPConnection(*address, timeout=60)
        try:
            connection.request(method, path, whole or None, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()

    def sums(self, rows: np.ndarray) -> list[float]:
        """Ask for sums of rows by HTTP, as JSON."""
        answer = self.ask({"inputs": [tensor(rows)]})
        assert answer.status == 200, answer
        return list(answer.json["outputs"][0]["data"])

    def is_right(self) -> bool:
        """Tell whether the server answers as it should, by HTTP and by gRPC."""
        rows = np.arange(8, dtype=np.float32).reshape(2, 4)
        found = self.client.predict("sums", {"x": rows})["y"]
        return self.sums(rows) == [6.0, 22.0] and found.ravel().tolist() == [6.0, 22.0]


def tensor(rows: np.ndarray, **changed: Any) -> dict[str, Any]:
    """Return an input of `sums`, as JSON has it."""
    values = {"shape": list(rows.shape), "datatype": "FP32", "data": rows.ravel().tolist()}
    return {"name": "x", **values, **changed}


@contextmanager
def stand(home: Path) -> Iterator[Stand]:
    """Start a Triton and its guard, with the models `sums` and `words`."""
    installation, endpoint = Installation(home, "", "").prepared(), free_endpoint()
    with server.running(installation, endpoint) as client:
        repository = Repository(installation.model_repository, installation.staging)
        for name, graph in (("sums", _sums()), ("words", _words())):
            path = installation.staging / f"{name}.onnx"
            path.write_bytes(graph)
            repository.stage(name, 1, artifact_of_graph(path, digest_of(path)))
            signature = signature_of(repository.artifact(name, 1))
            config = model_config(name, signature, ServingSpec(), version_policy=latest())
            repository.write_config(config)
            client.load(name)
        yield Stand(installation, endpoint, client)


def _sums() -> bytes:
    return proto(
        [helper.make_node("ReduceSum", ["x", "axis"], ["y"])],
        [("x", FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 1])],
        [("axis", np.array([1]))],
    )


def _words() -> bytes:
    word = [("w", TensorProto.STRING, ["batch", 1])]
    named = [("same", TensorProto.STRING, ["batch", 1])]
    return proto([helper.make_node("Identity", ["w"], ["same"])], word, named)
