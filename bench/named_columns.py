"""N1, N32 and N32J: what it costs to ask a model by the names of its columns; N32L: to log that.

The same server serves the model by its tensor and by its columns, and both take turns. The columns
are those of a small table: two categories, four numbers, one of them with nulls, and a truth.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import Bench, batch_of, mlp, own_server
from millrace.models.common.digest import digest_of
from millrace.models.config.serving_spec import RequestLogSpec, ServingSpec
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.named_columns import columns_json
from millrace.serving.triton.column_front import start_front
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.server_index import COLUMNS

ROUNDS = 9
SECONDS = 1.0
CLIENTS = 32
MODEL, LOGGED = "plain", "logged"
FEATURES = (
    Feature("island", "category", categories=("Biscoe", "Dream", "Torgersen")),
    Feature("sex", "category", categories=("female", "male"), nullable=True),
    *(Feature(f"number_{place}", "number") for place in range(3)),
    Feature("year", "number", nullable=True, values="int"),
    Feature("tagged", "number", values="bool"),
)
ROW = {"island": "Dream", "sex": "male", "number_0": 39.1, "number_1": 18.7, "number_2": 181.0}
ROW |= {"year": 2007, "tagged": True}


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on one Triton."""
    with own_server() as bench:
        serve(bench, MODEL, ServingSpec())
        serve(bench, LOGGED, ServingSpec(request_log=RequestLogSpec()))
        measures = {
            "N1": partial(added_latency, bench),
            "N32": partial(throughput, bench, "N32", "tensors by name", tensors_of(ROW)),
            "N32J": partial(throughput, bench, "N32J", "a row of JSON", json_of(ROW)),
            "N32L": partial(logged_throughput, bench),
        }
        yield from measure_rows(measures, wanted)


def serve(bench: Bench, model: str, serving: ServingSpec) -> None:
    """Serve a small model by its tensor and by its columns."""
    onnx = mlp(bench.repository.staging / f"{model}.onnx", (len(FEATURES), 64, 64, 3))
    bench.serve(model, onnx, serving)
    columns = json.loads(columns_json(Encoding(FEATURES, "species", ("a", "b", "c"))))
    artifact = artifact_of_graph(onnx, digest_of(onnx), serving=serving)
    named = columns | {"input": "x", "output": "y"}
    artifact = replace(artifact, columns=json.dumps(named))
    bench.repository.remove(model, 1)
    bench.repository.stage(model, 1, artifact)
    start_front(model, 1, bench.repository, bench.client)


def tensors_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as tensors by name: a null is empty in a text and NaN in a number."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or isinstance(value, str):
            values[name] = np.array([[(value or "").encode()]], dtype=object)
        elif isinstance(value, bool):
            values[name] = np.array([[value]])
        else:
            values[name] = np.array([[value]], np.float64)
    return values


def json_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as the input with rows of JSON."""
    return {"rows": np.array([[json.dumps(row).encode()]], dtype=object)}


def added_latency(bench: Bench) -> Row:
    """N1: milliseconds that the step adds to the median latency of one client."""
    plain, named = batch_of(len(FEATURES), 1), tensors_of(ROW)
    rounds = measure_in_turn(
        lambda: bench.latency_ms(MODEL + COLUMNS, named, 0.5, SECONDS),
        lambda: bench.latency_ms(MODEL, plain, 0.5, SECONDS),
        ROUNDS,
    )
    added = float(np.median([a - b for a, b in zip(rounds.a, rounds.b, strict=True)]))
    return Row(
        name="N1",
        what="by columns − by the tensor, p50 of one client in ms",
        value=added,
        goal="≤ 1",
        holds=added <= 1,
        samples={"columns_p50_ms": rounds.a, "tensor_p50_ms": rounds.b},
    )


def throughput(bench: Bench, name: str, what: str, feed: Mapping[str, Any]) -> Row:
    """N32 and N32J: requests per second of clients that each wait for their answer."""
    by_name, plain = (
        bench.request_rate(model, inputs, CLIENTS, SECONDS)
        for model, inputs in ((MODEL + COLUMNS, feed), (MODEL, batch_of(len(FEATURES), 1)))
    )
    rounds = measure_in_turn(by_name, plain, ROUNDS)
    return Row(
        name=name,
        what=f"by columns ({what}) ÷ by the tensor, requests/s of {CLIENTS} clients",
        value=rounds.ratio,
        goal="≥ 0.5",
        holds=rounds.ratio >= 0.5,
        samples={"columns_requests_per_s": rounds.a, "tensor_requests_per_s": rounds.b},
    )


def logged_throughput(bench: Bench) -> Row:
    """N32L: requests per second with the request log of the default sample, and without it."""
    logged, plain = (
        bench.request_rate(model + COLUMNS, tensors_of(ROW), CLIENTS, SECONDS)
        for model in (LOGGED, MODEL)
    )
    rounds = measure_in_turn(logged, plain, ROUNDS)
    return Row(
        name="N32L",
        what=f"by columns with a tenth logged ÷ without, requests/s of {CLIENTS} clients",
        value=rounds.ratio,
        goal="≥ 0.97",
        holds=rounds.ratio >= 0.97,
        samples={"logged_requests_per_s": rounds.a, "plain_requests_per_s": rounds.b},
    )
