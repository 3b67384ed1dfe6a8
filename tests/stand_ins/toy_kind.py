"""A kind of model that only tests know: least squares, solved at once, served as an ONNX graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot, scan
from millrace.models.families.objective import objective_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.training.train_job import Report, TrainJob
from millrace.tasks.kinds.graph.graph_export import GraphExport, baseline_on, evidence_of
from millrace.tasks.kinds.graph.graph_kind import GraphKind
from millrace.tasks.kinds.graph.graph_rows import first_rows, split_rows
from millrace.tasks.kinds.graph.graph_train import GraphTraining, fit_rows
from millrace.tasks.kinds.steps import Prepared, Trained

HERE = "tests.stand_ins.toy_kind"
WEIGHTS = "weights.npy"


class ToyKind(ModelKind):
    """Numbers in, a number out."""

    name = "toy"
    families = ("least_squares",)
    keys: Mapping[str, tuple[str, ...]] = {"export": ("max_metric_loss",)}
    variants = ("onnx-fp32",)
    default_variants = ("onnx-fp32",)
    rollouts = ("direct", "canary")
    gates = ("export.max_metric_loss",)
    evidence_files = GraphKind.evidence_files
    model_folder = ""
    model_files = GraphKind.model_files
    triton = GraphKind.triton
    folders = ("tests/stand_ins/toy_kind.py",)
    steps: Mapping[str, str] = {
        **GraphKind.steps,
        "prepare": f"{HERE}:prepare",
        "describe_progress": f"{HERE}:describe",
        "export": f"{HERE}:export",
    }

    def check_dataset(self, spec: DatasetSpec, family: str) -> None:
        """Any."""


@dataclass(frozen=True)
class ToyJob(TrainJob):
    """Solves the normal equations."""

    features: Any
    target: Any

    unit = "epoch"
    loss = "train_loss"
    advice = ""
    num_workers = 1  # type: ignore[assignment]
    max_failures = 0  # type: ignore[assignment]

    def run(self, start: Path | None, report: Report) -> None:
        """Solve, and report once."""
        rows = np.column_stack([self.features, np.ones(len(self.features))])
        weights, *_ = np.linalg.lstsq(rows, self.target, rcond=None)
        error = float(np.square(rows @ weights - self.target).mean())
        names = (f"{split}_{name}" for split in ("train", "validation") for name in ("loss", "r2"))
        metrics = {"epoch": 1, "began_at": 0, **dict.fromkeys(names, error)}
        report(metrics, lambda folder: np.save(folder / WEIGHTS, weights))


def prepare(
    pipeline: Pipeline, installation: Installation, snapshot: Snapshot, run: TrackedRun
) -> Prepared[GraphTraining]:
    """Read the train split."""
    encoding = fit_rows(pipeline, snapshot)
    rows = list(scan(snapshot, "train", pipeline.dataset.split))
    features = np.concatenate([encoding.encode(each) for each in rows])
    target = np.concatenate([encoding.encode_target(each) for each in rows])
    job = ToyJob(features, target)
    details = GraphTraining(encoding)
    return Prepared(job, details, 1, f"{len(target)} rows", WEIGHTS, "weights")


def describe(metrics: Mapping[str, Any]) -> str:
    """Return the loss."""
    return f"loss {metrics['train_loss']:.3g}"


def export(
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    trained: Trained[GraphTraining],
    folder: Path,
) -> GraphExport:
    """Export to a graph of one matrix."""
    encoding, weights = trained.details.encoding, np.load(trained.weights).astype(np.float32)
    test, target = split_rows(pipeline, snapshot, encoding, folder)
    linear = torch.nn.Linear(len(weights) - 1, 1)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weights[:-1])[None])
        linear.bias.copy_(torch.from_numpy(weights[-1:]))
    exporter = Exporter(
        served=linear,
        objective=objective_of(encoding),
        read=encoding.input,
        calibration=lambda: (),
        validation=lambda: evidence_of(pipeline, exporter, test, target),
        folder=folder,
        threads=1,
        spec=pipeline.export,
        trained_as="least_squares",
        to_onnx=partial(write_graph, weights),
    )
    return GraphExport(
        pipeline,
        exporter,
        evidence_of(pipeline, exporter, test, target),
        baseline_on(pipeline, snapshot, encoding, target),
        encoding,
        first_rows(pipeline, snapshot, pipeline.export.golden_rows),
        None,
    )


def write_graph(weights: Any, target: Path) -> None:
    """Write features × weights + bias."""
    width = len(weights) - 1
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["features", "w", "b"], ["prediction"])],
        "toy",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["rows", 1])],
        [
            numpy_helper.from_array(weights[:-1, None], "w"),
            numpy_helper.from_array(weights[-1:], "b"),
        ],
    )
    opset = [helper.make_opsetid("", 20)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset, ir_version=9), target)
