"""What is learnt: classes or a number. Loss, metric and answer of each."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from models.arrays import Array
from models.errors import InputError
from models.features import Encoding


class Objective(Protocol):
    """Loss, metric and answer of one kind of target.

    Attributes:
        metric: name of the metric; higher is better.
        output: name of the model's output.
        outputs: width of the output.
    """

    metric: str
    output: str
    outputs: int

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar."""
        ...

    def activation(self, logits: Tensor) -> Tensor:
        """Return the answer that clients get, float32 `[rows, outputs]`."""
        ...

    def sums(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return float64 sums that add up over batches and workers, for `metric_of`."""
        ...

    def metric_of(self, sums: Tensor) -> float:
        """Return the metric of all rows that went into `sums`."""
        ...

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return the metric of served answers `[rows, outputs]` against `target` `[rows]`."""
        ...

    def prediction(self, answers: Array) -> list[str | int | bool | float]:
        """Return one predicted value for each row."""
        ...

    def score(self, answers: Array) -> Array:
        """Return float32 `[rows]`: the probability of the predicted class, or the value."""
        ...


class Classification:
    """Softmax over classes by cross-entropy; the metric is accuracy."""

    metric = "accuracy"
    output = "probabilities"

    def __init__(self, labels: tuple[str | int | bool, ...]) -> None:
        self.labels = labels
        self.outputs = len(labels)

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats."""
        return functional.cross_entropy(logits, target)

    def activation(self, logits: Tensor) -> Tensor:
        """Return probabilities."""
        return torch.softmax(logits, dim=1)

    def sums(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return `[rows, right]`."""
        right = (logits.argmax(dim=1) == target).sum()
        return torch.stack([torch.full_like(right, len(target)), right]).double()

    def metric_of(self, sums: Tensor) -> float:
        """Return the share of rows that were right."""
        return float(sums[1] / sums[0].clamp(min=1))

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return the accuracy."""
        return float((answers.argmax(axis=1) == target).mean())

    def prediction(self, answers: Array) -> list[str | int | bool | float]:
        """Return the most probable label of each row."""
        return [self.labels[position] for position in answers.argmax(axis=1)]

    def score(self, answers: Array) -> Array:
        """Return the probability of the predicted label."""
        return np.asarray(answers.max(axis=1), dtype=np.float32)


class Regression:
    """One number by mean squared error; the metric is R², the share of variance explained."""

    metric = "r2"
    output = "prediction"
    outputs = 1

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error in the target's unit, squared."""
        return functional.mse_loss(logits[:, 0], target)

    def activation(self, logits: Tensor) -> Tensor:
        """Return the logits as they are."""
        return logits

    def sums(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return `[rows, sum of squared errors, sum, sum of squares]` of the target."""
        exact = target.double()
        error = (logits[:, 0].double() - exact).square().sum()
        rows = torch.full_like(error, len(target))
        return torch.stack([rows, error, exact.sum(), exact.square().sum()])

    def metric_of(self, sums: Tensor) -> float:
        """Return 1 − residual ÷ total sum of squares."""
        rows, error, total, squares = (float(value) for value in sums)
        spread = squares - total * total / max(rows, 1.0)
        return 1.0 - error / spread if spread > 0 else 0.0

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return R²."""
        return self.metric_of(self.sums(torch.from_numpy(answers), torch.from_numpy(target)))

    def prediction(self, answers: Array) -> list[str | int | bool | float]:
        """Return the predicted number of each row."""
        return [float(value) for value in answers[:, 0]]

    def score(self, answers: Array) -> Array:
        """Return the predicted number."""
        return np.asarray(answers[:, 0], dtype=np.float32)


def objective_of(encoding: Encoding) -> Objective:
    """Return the objective that the target's type asks for.

    Raises:
        InputError: the target has one class only.
    """
    if not encoding.labels:
        return Regression()
    if len(encoding.labels) < 2:
        raise InputError(
            f"the target {encoding.target!r} has one class only",
            seen=list(encoding.labels),
            valid="two classes or more",
            hint="check dataset.target and the rows of the source",
        )
    return Classification(encoding.labels)
