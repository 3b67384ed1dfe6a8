"""Pruning and rounding on real Ray workers, one of which dies on the way.

The rows are streamed by Ray Data here, as those of a large table are.
"""

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load_file

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data import ingest, snapshots
from millrace.models.inference.features import fit_encoding
from millrace.models.ray.cluster import connect_to_ray
from millrace.models.training.network_job import NetworkJob, Table
from millrace.models.training.trainer import TrainResult, fit

EPOCHS = 6

FILE = """
name: dying
dataset: {{source: "sklearn:digits", target: target}}
model: {{family: "dying:Dying", params: {{hidden: [32, 16], folder: "{folder}"}}}}
training:
  epochs: 6
  pruning: {{sparsity: 0.5, start: 0.1, end: 0.7, frequency: 3}}
  quantization_aware: {{start: 0.5}}
"""

NET = '''
import os
from pathlib import Path

import torch.distributed

from millrace.models.families.mlp import Perceptron


class Dying(Perceptron):
    """Its rank 0 is killed once, when it begins its fifth epoch."""

    def __init__(self, in_features, num_classes, hidden, folder):
        super().__init__(in_features, num_classes, hidden)
        self.died, self.begun = Path(folder) / "died", 0

    def train(self, mode=True):
        if mode and torch.distributed.is_initialized():
            self.begun += 1
            if self.begun == 5 and torch.distributed.get_rank() == 0 and not self.died.exists():
                self.died.touch()
                os._exit(1)
        return super().train(mode)
'''


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainResult]:
    folder = tmp_path_factory.mktemp("dying")
    (folder / "dying.py").write_text(NET)
    (folder / "dying.yaml").write_text(FILE.format(folder=folder))
    pipeline = load_pipeline(folder / "dying.yaml")
    home = folder / "home"
    installation = Installation(
        home, f"sqlite:///{home}/mlflow.db", str(home / "tables")
    ).prepared()
    snapshot = ingest.ingest(pipeline, installation)
    shares = pipeline.dataset.split
    encoding = fit_encoding(snapshot.schema, snapshots.scan(snapshot, "train", shares))
    rows = snapshots.count_rows(snapshot, "train", shares)
    table = Table(snapshot, shares)
    job = NetworkJob(pipeline.model, pipeline.training, encoding, folder, rows, table=table)
    with pytest.MonkeyPatch.context() as patch:
        # As a run has it: a report waits until Ray Train's controller looks.
        patch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
        with connect_to_ray("local", pipeline.training.workers):
            yield fit(job, home / "training", "dying", lambda _: None)


def test_a_killed_worker_costs_neither_masks_nor_ranges(result: TrainResult) -> None:
    assert len(result.recoveries) == 1
    assert 0 < result.recoveries[0] < EPOCHS
    sparsity = [epoch["sparsity"] for epoch in result.history]
    assert sparsity == sorted(sparsity)
    assert sparsity[-1] == pytest.approx(0.5, abs=0.01)
    assert [epoch["quantized"] for epoch in result.history] == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]


def test_half_of_the_weights_that_are_exported_are_zero(result: TrainResult) -> None:
    weights = load_file(result.checkpoint / "model.safetensors")
    layers = [each for name, each in weights.items() if name.endswith("weight")]
    shares = [float((each == 0).float().mean()) for each in layers]
    assert shares == pytest.approx([0.5] * 3, abs=0.01)
    assert all(bool(torch.isfinite(each).all()) for each in layers)
