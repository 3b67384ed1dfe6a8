"""What the GPU tests share: a small classifier, its variants, and what it is measured on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.export.tensorrt.engine import axes_of
from millrace.models.common.arrays import Array
from millrace.models.config.export_spec import ExportSpec
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import FEATURES, ModelInput

EPOCHS = 30
LABELS = tuple(range(10))
PIXELS = ModelInput(FEATURES, 64)
ENCODING = Encoding((Feature("v", "vector", width=64, mean=8.0, std=6.0),), "t", LABELS)


@dataclass(frozen=True)
class Digits:
    """A perceptron that has learnt the digits.

    Attributes:
        served: float32 `[rows, 64]` to probabilities, float32 `[rows, 10]`.
        train: rows that calibrate, float32 `[rows, 64]`; so test, with its target.
    """

    served: Served
    objective: Classification
    train: Array
    test: Array
    target: Array

    def evidence(self) -> Evidence:
        return gather_evidence(
            *(self.served, self.objective, PIXELS, self.test, self.target), golden_rows=32
        )

    def exporter(self, folder: Path, *candidates: str, **options: object) -> Exporter:
        def calibration() -> Iterator[Array]:
            yield from (self.train[start : start + 64] for start in range(0, 512, 64))

        return Exporter(
            served=self.served,
            objective=self.objective,
            read=PIXELS,
            calibration=calibration,
            validation=self.evidence,
            folder=folder,
            threads=1,
            spec=ExportSpec.model_validate({"candidates": candidates or ("onnx-fp32",)}),
            axes=axes_of(PIXELS, 64, 32),
            timing_caches=folder / "timing_caches",
            **options,
        )


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Learn the digits, on the CPU, in seconds."""
    torch.manual_seed(0)
    rows, target = load_digits(return_X_y=True)
    rows = rows.astype(np.float32)
    objective = Classification(LABELS)
    net = Network(ENCODING, Perceptron(ENCODING.in_features, objective.outputs, hidden=(128, 128)))
    train, wanted = torch.from_numpy(rows[:1400]), torch.from_numpy(target[:1400])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(train)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(train[batch]), wanted[batch]).backward()
            optimizer.step()
    served = Served(net, objective).eval()
    return Digits(served, objective, rows[:1400], rows[1400:], target[1400:])
