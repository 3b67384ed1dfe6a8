"""What somebody would send to the ports of `up`: to run code, to change what is there, to read."""

import base64
import json
import time
from collections.abc import Mapping
from typing import Any

from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    compute_signature,
)
from millrace.models.inference.model_input import FEATURES
from millrace.serving.guard.token_names import TOKEN_HEADER
from tests.integration.stranger import Ask

JSON = {"Content-Type": "application/json"}
MLFLOW = "/api/2.0/mlflow"
CODE = """
from pathlib import Path
Path({marker!r}).touch()
class TritonPythonModel:
    def execute(self, requests):
        return []
"""
CODE_CONFIG = json.dumps(
    {
        "backend": "python",
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
    }
)
ENDS_TRITON = {"name": FEATURES, "shape": [2147483648, 64], "datatype": "FP32", "data": []}


def mlflow_changes(model: str, version: int) -> list[Ask]:
    """Return requests that would change what others made, or make the server ask elsewhere.

    Args:
        model: that is registered.
        version: of it.
    """
    named = {"name": model}
    numbered = {**named, "version": str(version)}
    hook = {"name": "h", "url": "http://127.0.0.1:1/", "events": [{"entity": "RUN"}]}
    mutation = {"query": "mutation { __typename }"}
    changes = [
        ("POST", f"{MLFLOW}/registered-models/alias", {**numbered, "alias": "champion"}),
        ("DELETE", f"{MLFLOW}/registered-models/alias", {**named, "alias": "champion"}),
        ("DELETE", f"{MLFLOW}/registered-models/delete", named),
        ("POST", f"{MLFLOW}/registered-models/set-tag", {**named, "key": "k", "value": "v"}),
        ("POST", f"{MLFLOW}/model-versions/create", {**named, "source": "file:///tmp"}),
        ("POST", f"{MLFLOW}/model-versions/set-tag", {**numbered, "key": "k", "value": "v"}),
        ("DELETE", f"{MLFLOW}/model-versions/delete", numbered),
        ("POST", f"{MLFLOW}/experiments/delete", {"experiment_id": "1"}),
        ("POST", f"{MLFLOW}/runs/create", {"experiment_id": "1"}),
        ("POST", f"{MLFLOW}/webhooks", hook),
        ("POST", "/graphql", mutation),
        ("PATCH", f"{MLFLOW}/users/update-password", {"username": "admin", "password": "x" * 12}),
        ("PATCH", f"{MLFLOW}/users/update-admin", {"username": "eve", "is_admin": True}),
        ("DELETE", f"{MLFLOW}/users/delete", {"username": "admin"}),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/x/artifacts/model.onnx", {}),
        ("PUT", "/ajax-api/2.0/mlflow-artifacts/artifacts/1/x/artifacts/model.onnx", {}),
        ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/1/x", {}),
        ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=1&path=x", {}),
        ("POST", "/ajax-api/3.0/jobs/", {"job_name": "x"}),
        ("POST", "/ajax-api/3.0/mlflow/gateway/endpoints/create", {"name": "x"}),
        ("POST", "/v1/traces", {}),
    ]
    return [Ask(method, path, json.dumps(body)) for method, path, body in changes]


def mlflow_reads(model: str) -> list[Ask]:
    paths = (f"{MLFLOW}/registered-models/get?name={model}", "/get-artifact?run_uuid=1&path=x")
    return [Ask("GET", path) for path in paths]


def triton_changes(model: str, marker: str, token: str = "") -> list[Ask]:
    """Return requests to Triton's HTTP that would change it or end it.

    Args:
        model: that it serves.
        marker: file that the code in one of them makes.
        token: sent with them.
    """
    code = base64.b64encode(CODE.format(marker=marker).encode()).decode()
    planted = {"parameters": {"config": CODE_CONFIG, "file:1/model.py": code}}
    region = {"key": "/r", "offset": 0, "byte_size": 1}
    changes: list[tuple[str, Mapping[str, Any]]] = [
        ("repository/index", {}),
        ("repository/models/planted/load", planted),
        (f"repository/models/{model}/load", {}),
        (f"repository/models/{model}/unload", {}),
        ("systemsharedmemory/region/r/register", region),
        ("systemsharedmemory/unregister", {}),
        ("cudasharedmemory/unregister", {}),
        ("trace/setting", {"trace_level": ["TIMESTAMPS"]}),
        (f"models/{model}/trace/setting", {"trace_level": ["TIMESTAMPS"]}),
        ("logging", {"log_verbose_level": 1}),
        (f"models/{model}/infer", {"inputs": [ENDS_TRITON]}),
    ]
    headers = JSON | ({TOKEN_HEADER: token} if token else {})
    return [Ask("POST", f"/v2/{path}", json.dumps(body), headers) for path, body in changes]


def triton_reads(model: str, rows: int) -> list[Ask]:
    """Return a request for inference of rows of zeros, and what may be read by HTTP."""
    data = [0.0] * 4 * rows
    x = {"name": FEATURES, "shape": [rows, 4], "datatype": "FP32", "data": data}
    infer = Ask("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": [x]}), JSON)
    paths = ("/v2", "/v2/models/stats", f"/v2/models/{model}/config")
    return [infer, *(Ask("GET", path) for path in paths)]


def delivery(model: str, secret: str) -> Ask:
    """Return what MLflow would deliver now, of a champion that has changed."""
    data = {"name": model, "alias": "champion", "version": "2"}
    body = json.dumps({"entity": "model_version_alias", "action": "created", "data": data})
    name, now = "planted", str(int(time.time()))
    signed = compute_signature(secret, name, now, body.encode())
    headers = {ID_HEADER: name, TIMESTAMP_HEADER: now, SIGNATURE_HEADER: signed}
    return Ask("POST", "/mlflow", body, JSON | headers)


def completions(model: str, secret: str) -> list[Ask]:
    """Return requests at the door in OpenAI's form."""
    headers = JSON | {"Authorization": f"Bearer {secret}"}
    chat = {"model": model, "messages": [{"role": "user", "content": "x"}]}
    return [
        Ask("GET", "/v1/models", None, headers),
        Ask("POST", "/v1/completions", json.dumps({"model": model, "prompt": "x"}), headers),
        Ask("POST", "/v1/chat/completions", json.dumps(chat), headers),
    ]
