"""scikit-learn's digits, and the pipeline's training loop in this process, without Ray."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from millrace.export.onnx.torch_export import export_onnx
from millrace.models.common.arrays import Array
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import FEATURES, ModelInput
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.training.compression.compression import Compression, remove_pruned
from millrace.models.training.compression.distillation import Teacher, Tutor

BATCH = 64
LABELS = tuple(range(10))
READ = ModelInput(FEATURES, 64)
OBJECTIVE = Classification(LABELS)
OUTLIERS, FACTOR = 8, 300.0

Part = tuple[Array, Array]
"""Pixels, float32 `[rows, 64]`, and labels, `[rows]`."""
Curve = list[dict[str, float]]
"""The accuracy after each epoch, with what compression logs."""


def split_digits(*at: int) -> list[Part]:
    """Return the 1,797 digits, shuffled, in parts that end at these rows and at the last."""
    pixels, target = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    return [(pixels[part].astype(np.float32), target[part]) for part in np.split(order, at)]


@dataclass(frozen=True)
class Data:
    """Digits to train on, and digits to measure on."""

    train: Part
    test: Part

    @classmethod
    def halves(cls) -> "Data":
        """Return 898 rows to train on, and 899 to measure on."""
        return cls(*split_digits(898))

    def with_wrong_labels(self, share: float) -> "Data":
        """Return the data with a share of the training labels drawn at random."""
        generator, (features, target) = np.random.default_rng(0), self.train
        drawn = generator.integers(0, len(LABELS), len(target))
        wrong = np.where(generator.random(len(target)) < share, drawn, target)
        return Data((features, wrong), self.test)


def train_network(
    net: nn.Module,
    data: Data,
    spec: TrainingSpec,
    *,
    teacher: Teacher | None = None,
    seed: int = 0,
    warm_up: float = 0.1,
) -> tuple[Served, Curve]:
    """Train like the pipeline's loop: AdamW, one cycle, and compression at its places.

    Args:
        net: the network.
        data: what it trains on, and is measured on after each epoch.
        spec: epochs, learning rate and compression.
        teacher: for distillation; None for none.
        seed: of the order of the rows.
        warm_up: share of the steps in which the learning rate rises.

    Returns:
        The trained model, and the accuracy after each epoch with what compression logs.
    """
    torch.manual_seed(seed)
    pixels = data.train[0]
    image = Feature("image", "vector", width=64, mean=float(pixels.mean()), std=float(pixels.std()))
    network = Network(Encoding((image,), "target", LABELS), net)
    features, target = (torch.from_numpy(each) for each in data.train)
    steps = -(-len(target) // BATCH)
    compression = Compression(spec, network, steps)
    tutor = Tutor(teacher, OBJECTIVE) if teacher else None
    optimizer = torch.optim.AdamW(network.parameters(), spec.peak_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, spec.peak_rate, total_steps=steps * spec.epochs + 1, pct_start=warm_up
    )
    curve: Curve = []
    for epoch in range(spec.epochs):
        network.train()
        compression.begin_epoch(epoch)
        for rows in torch.split(torch.randperm(len(target)), BATCH):
            optimizer.zero_grad()
            with compression.forward():
                logits = network(features[rows])
            loss = OBJECTIVE.loss(logits, target[rows])
            if tutor is not None:
                loss = tutor.blended(loss, features[rows], logits)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            compression.after_step()
            schedule.step()
        compressed = compression.end_epoch()
        with torch.no_grad(), compression.forward():
            answers = network.eval()(torch.from_numpy(data.test[0])).numpy()
        accuracy = OBJECTIVE.metric_of_answers(answers, data.test[1])
        curve.append({"epoch": epoch + 1, "accuracy": accuracy, **compressed})
    remove_pruned(spec, network)
    return Served(network.eval(), OBJECTIVE), curve


def enlarge_channels(served: Served) -> None:
    """Make some channels of every hidden layer outliers, without changing any answer."""
    layers = [each for each in served.modules() if isinstance(each, nn.Linear)]
    with torch.no_grad():
        for layer, following in zip(layers, layers[1:], strict=False):
            layer.weight[:OUTLIERS] *= FACTOR
            layer.bias[:OUTLIERS] *= FACTOR
            following.weight[:, :OUTLIERS] /= FACTOR


def export(served: Served, path: Path) -> Path:
    """Write the model as onnx-fp32, and return the file."""
    export_onnx(served, READ, OBJECTIVE.output, path)
    return path


def metric_of(file: Path, data: Data) -> float:
    """Return the accuracy of an exported file on the rows to measure on."""
    return OBJECTIVE.metric_of_answers(OnnxSession(file).answer(data.test[0]), data.test[1])
