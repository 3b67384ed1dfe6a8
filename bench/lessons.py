"""The digits, and the parts of the pipeline's training loop in this process and without Ray."""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from bench.forms import BATCH, LABELS, READ, Data
from millrace.export.onnx.torch_export import export_onnx
from millrace.models.config.training_spec import TrainingSpec
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.training.compression.compression import Compression, remove_pruned
from millrace.models.training.compression.distillation import Teacher, Tutor

OBJECTIVE = Classification(LABELS)

Curve = list[dict[str, float]]
"""The accuracy after each epoch, with what compression logs."""


def halves() -> Data:
    """Return scikit-learn's digits: 898 rows to learn from, 899 to measure on."""
    pixels, target = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    first, second = (
        (pixels[part].astype(np.float32), target[part]) for part in np.split(order, [898])
    )
    return Data(first, second, second)


def with_wrong_labels(data: Data, share: float) -> Data:
    """Return the data with a share of the labels to learn from drawn at random."""
    generator, (features, target) = np.random.default_rng(0), data.train
    drawn = generator.integers(0, len(LABELS), len(target))
    wrong = np.where(generator.random(len(target)) < share, drawn, target)
    return Data((features, wrong), data.validation, data.test)


def trained(
    net: nn.Module,
    data: Data,
    spec: TrainingSpec,
    *,
    teacher: Teacher | None = None,
    seed: int = 0,
) -> tuple[Served, Curve]:
    """Train as the pipeline's loop does: AdamW, one cycle, compression at its places.

    Returns:
        The trained model, and the accuracy after each epoch with what compression logs.
    """
    torch.manual_seed(seed)
    network = Network(data.encoding, net)
    features, target = (torch.from_numpy(each) for each in data.train)
    steps = -(-len(target) // BATCH)
    compression = Compression(spec, network, steps)
    tutor = Tutor(teacher, OBJECTIVE) if teacher else None
    optimizer = torch.optim.AdamW(network.parameters(), spec.learning_rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, spec.learning_rate, total_steps=steps * spec.epochs + 1, pct_start=0.1
    )
    curve: Curve = []
    for epoch in range(spec.epochs):
        network.train()
        compression.begin_epoch(epoch)
        for places in torch.split(torch.randperm(len(target)), BATCH):
            optimizer.zero_grad()
            with compression.forward():
                logits = network(features[places])
            loss = OBJECTIVE.loss(logits, target[places])
            if tutor is not None:
                loss = tutor.blended(loss, features[places], logits)
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


def exported(served: Served, path: Path) -> Path:
    """Write the model as onnx-fp32, and return the file."""
    export_onnx(served, READ, OBJECTIVE.output, path)
    return path


def metric_of(file: Path, data: Data) -> float:
    """Return the accuracy of an exported file on the rows to measure on."""
    return OBJECTIVE.metric_of_answers(OnnxSession(file).answer(data.test[0]), data.test[1])
