"""The export of boosted trees to ONNX, measured and certified against XGBoost's own answers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xgboost
from torch import Tensor, nn

from millrace.export.onnx.graph_certificate import GraphCandidate
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.installation import Installation
from millrace.models.common.subprocess_runner import run_in_subprocess
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.families.objective import objective_of
from millrace.models.inference.features import Encoding
from millrace.tasks.kinds.gradient_boosting.boosting_job import answers_of_trees
from millrace.tasks.kinds.graph.graph_export import GraphExport, baseline_on, evidence_of
from millrace.tasks.kinds.graph.graph_rows import first_rows, split_rows
from millrace.tasks.kinds.graph.graph_train import GraphTraining
from millrace.tasks.kinds.steps import Trained

TOLERANCE = 1e-5
"""Largest allowed difference of the answers, as a share of their range.

Sums of the same float32 values in another order differ by less.
"""
PROGRAM = "millrace.tasks.kinds.gradient_boosting.boosting_onnx"


class Trees(nn.Module):
    """XGBoost's trees as a PyTorch module, whose answers exported models are compared with."""

    def __init__(self, booster: xgboost.Booster, encoding: Encoding) -> None:
        super().__init__()
        self.booster, self.encoding = booster, encoding

    def forward(self, features: Tensor) -> Tensor:
        """Return the answers, float32 `[rows, outputs]`."""
        return torch.from_numpy(answers_of_trees(self.booster, self.encoding, features.numpy()))


@dataclass(frozen=True)
class TreesExport(GraphExport):
    """The export of boosted trees; an `Export`."""

    def candidates(self) -> Iterator[GraphCandidate]:
        """Measure the ONNX model, and refuse it if its answers differ from XGBoost's."""
        span = float(np.ptp(self.measured_on.test_answers))
        for each in super().candidates():
            difference = each.stage.test_difference if each.stage else None
            if each.passed and difference is not None and not difference <= TOLERANCE * span:
                reason = (
                    f"its answers differ from XGBoost's by {difference:.2e}, more than "
                    f"{TOLERANCE:g} of their range; raise model.params.max_cat_to_onehot"
                )
                yield replace(each, reason=reason)
            else:
                yield each


def export_trees(
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    trained: Trained[GraphTraining],
    folder: Path,
) -> TreesExport:
    """Return the export of trained trees.

    Raises:
        InputError: the test split has no rows.
    """
    encoding = trained.details.encoding
    test, target = split_rows(pipeline, snapshot, encoding, folder)
    objective = objective_of(encoding)
    trees = Trees(xgboost.Booster(model_file=trained.weights), encoding)
    exporter = Exporter(
        served=trees,
        objective=objective,
        read=encoding.input,
        calibration=lambda: (),  # no variant of trees needs calibration
        validation=lambda: evidence_of(pipeline, exporter, test, target),
        folder=folder,
        threads=pipeline.serving.intra_op_thread_count,
        gpu=pipeline.serving.on_gpu,
        spec=pipeline.export,
        trained_as="xgboost",
        to_onnx=partial(_convert, trained.weights, encoding.raw_width, objective.output, pipeline),
    )
    return TreesExport(
        pipeline,
        exporter,
        evidence_of(pipeline, exporter, test, target),
        baseline_on(pipeline, snapshot, encoding, target),
        encoding,
        first_rows(pipeline, snapshot, pipeline.export.golden_rows),
        trained.details.reference,
    )


def _convert(booster: Path, width: int, output: str, pipeline: Pipeline, target: Path) -> None:
    """Convert trees to ONNX in a subprocess with time and memory limits."""
    words: list[str | Path] = [booster, target, str(width), output]
    run_in_subprocess(
        PROGRAM,
        words,
        pipeline.export.limits.of_process,
        what="its conversion",
        retry_killed=False,
        may_fork=True,
    )
