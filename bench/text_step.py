"""T1 to T3: text served by one step, tokenizer and graph together, beside an ensemble of two.

Both serve one small BERT with random weights and one tokenizer, in the same server, and take turns.
The ensemble is that of Triton's documentation: a Python model that makes tokens, then the graph.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tritonclient.grpc import model_config_pb2 as pb

from bench.measure import Row, measure_in_turn, measure_rows
from bench.pretrained import EXAMPLES, load_functions
from bench.server import Bench, own_server
from millrace.export.onnx.graph_variants import FP32
from millrace.export.onnx.measure_graph import Evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.arrays import Array
from millrace.models.common.digest import digest_of
from millrace.models.config.export_spec import ExportSpec
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family import build_network
from millrace.models.families.network import Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.serving.triton.graph.triton_graph import (
    TEXT,
    artifact_of_graph,
    read_signature,
    signature_of,
)
from millrace.serving.triton.model_config import latest, model_config, to_text

ROUNDS = 9
SECONDS = 1.0
CLIENTS = 8
ROWS = 32
TOKENS, LABELS = 64, ("a", "b", "c", "d")
STEP, ENSEMBLE = "step", "ensemble"


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Serve the model both ways, and measure the wanted rows."""
    texts = load_functions()["code"].slice(0, 2000).to_pylist()
    batch = np.array(texts[:ROWS], dtype=object)[:, None]
    with own_server() as bench, tempfile.TemporaryDirectory() as folder:
        serve_both(bench, Path(folder), texts)
        one, many = "one client, a text at a time, p50", f"one client, {ROWS} texts at a time, p50"
        measures = {
            "T1": partial(median_latency, bench, "T1", one, batch[:1]),
            "T2": partial(throughput, bench, batch[:1]),
            "T3": partial(median_latency, bench, "T3", many, batch),
        }
        yield from measure_rows(measures, wanted)


def median_latency(bench: Bench, name: str, what: str, texts: Array) -> Row:
    """T1 and T3: p50 of one client that sends one text, or many texts of all lengths, at a time."""

    def p50(model: str) -> float:
        return bench.latency_ms(model, {TEXT: texts}, 0.5, SECONDS)

    return _compare(name, what, p50, below=True)


def throughput(bench: Bench, texts: Array) -> Row:
    """T2: requests per second of clients that each wait for the answer to one text."""

    def rate(model: str) -> float:
        return bench.request_rate(model, {TEXT: texts}, CLIENTS, SECONDS)()

    return _compare("T2", f"{CLIENTS} clients, requests/s", rate, below=False)


def serve_both(bench: Bench, folder: Path, texts: list[str]) -> None:
    """Serve the model as one step, and as an ensemble."""
    onnx, tokenizer = write_bert(folder, texts)
    repository, root = bench.repository, bench.repository.root
    repository.stage(STEP, 1, artifact_of_graph(onnx, digest_of(onnx), LABELS, tokenizer=tokenizer))
    graph = read_signature(onnx)
    serving, policy = ServingSpec(), latest()
    signature = signature_of(repository.artifact(STEP, 1))
    repository.write_config(model_config(STEP, signature, serving, version_policy=policy))
    bench.serve("graph", onnx, serving)

    (root / "tokens" / "1").mkdir(parents=True)
    program = Path(__file__).with_name("tokenizer_step.py").read_text()
    (root / "tokens" / "1" / "model.py").write_text(program)
    (root / "tokens" / "1" / "tokenizer.json").write_text(tokenizer)
    text = pb.ModelInput(name=TEXT, data_type=pb.TYPE_STRING, dims=[1])
    config = pb.ModelConfig(
        name="tokens",
        backend="python",
        max_batch_size=serving.max_batch_size,
        input=[text],
        output=[pb.ModelOutput(name="input_ids", data_type=pb.TYPE_INT64, dims=[-1])],
        dynamic_batching=pb.ModelDynamicBatching(),
        instance_group=[pb.ModelInstanceGroup(count=1, kind=pb.ModelInstanceGroup.KIND_CPU)],
    )
    (root / "tokens" / "config.pbtxt").write_text(to_text(config))

    answer = graph.outputs[0].name
    steps = (
        ("tokens", {TEXT: TEXT}, {"input_ids": "ids"}),
        ("graph", {graph.inputs[0].name: "ids"}, {answer: answer}),
    )
    (root / ENSEMBLE / "1").mkdir(parents=True)
    config = pb.ModelConfig(
        name=ENSEMBLE,
        platform="ensemble",
        max_batch_size=serving.max_batch_size,
        input=[text],
        output=[pb.ModelOutput(name=answer, data_type=pb.TYPE_FP32, dims=[len(LABELS)])],
        ensemble_scheduling=pb.ModelEnsembling(
            step=[
                pb.ModelEnsembling.Step(
                    model_name=name, model_version=-1, input_map=given, output_map=got
                )
                for name, given, got in steps
            ]
        ),
    )
    (root / ENSEMBLE / "config.pbtxt").write_text(to_text(config))
    for name in (STEP, "tokens", ENSEMBLE):
        bench.client.load(name)


def write_bert(folder: Path, texts: list[str]) -> tuple[Path, str]:
    """Write a graph with random weights, and return it and its tokenizer."""
    tokenizer = train_tokenizer(texts, 4096, TOKENS)
    encoding = Encoding((Feature("code", "text", TOKENS),), "t", LABELS, tokenizer=tokenizer)
    torch.manual_seed(0)
    objective = Classification(LABELS)
    network = build_network(ModelSpec(family="text_classifier"), EXAMPLES, encoding, objective)
    exporter = Exporter(
        served=Served(network.eval(), objective),
        objective=objective,
        read=encoding.input,
        calibration=lambda: (),
        validation=_no_evidence,
        folder=folder,
        threads=1,
        spec=ExportSpec(candidates=(FP32,)),
    )
    return exporter.make(FP32), tokenizer.json


def _no_evidence() -> Evidence:
    raise RuntimeError("fp32 asks for no rows")


def _compare(name: str, what: str, measure: Callable[[str], float], *, below: bool) -> Row:
    rounds = measure_in_turn(lambda: measure(STEP), lambda: measure(ENSEMBLE), ROUNDS)
    return Row(
        name=name,
        what=f"text by one step ÷ by an ensemble, {what}",
        value=rounds.ratio,
        goal="≤ 1" if below else "≥ 1",
        holds=rounds.ratio <= 1 if below else rounds.ratio >= 1,
        samples={STEP: rounds.a, ENSEMBLE: rounds.b},
    )
