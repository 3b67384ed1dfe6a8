"""The objectives classification and regression: loss, activation and metric in torch."""

import torch
from torch import Tensor
from torch.nn import functional

from millrace.models.inference.answers import ClassAnswers, NumberAnswers, answers_of, r2
from millrace.models.inference.features import Encoding


class Classification(ClassAnswers):
    """Classification: softmax over classes, trained with cross-entropy."""

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch in nats, a scalar."""
        return functional.cross_entropy(logits, target)

    def activation(self, logits: Tensor) -> Tensor:
        """Return the answers that clients get: probabilities, float32 `[rows, outputs]`."""
        return torch.softmax(logits, dim=1)

    def sums(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return `[rows, correct rows]`, float64, for adding up over batches and workers."""
        correct = (logits.argmax(dim=1) == target).sum()
        return torch.stack([torch.full_like(correct, len(target)), correct]).double()

    def metric_of(self, sums: Tensor) -> float:
        """Return the accuracy of all rows in `sums`."""
        return float(sums[1] / sums[0].clamp(min=1))


class Regression(NumberAnswers):
    """Regression: one number, trained with mean squared error in the target's standard deviations.

    Args:
        mean: mean of the target over the train split.
        std: standard deviation of the target over the train split.
    """

    def __init__(self, mean: float = 0.0, std: float = 1.0) -> None:
        self.mean = mean
        self.std = std

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean squared error of a batch in squared standard deviations, a scalar."""
        return functional.mse_loss(logits[:, 0], (target - self.mean) / self.std)

    def activation(self, logits: Tensor) -> Tensor:
        """Return the prediction in the target's own unit, float32 `[rows, 1]`."""
        return logits * self.std + self.mean

    def sums(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return `[rows, sum of squared errors, sum of targets, sum of squared targets]`.

        The sums are in standard deviations of the target, and float64, for adding up over batches
        and workers.
        """
        exact = (target.double() - self.mean) / self.std
        error = (logits[:, 0].double() - exact).square().sum()
        rows = torch.full_like(error, len(target))
        return torch.stack([rows, error, exact.sum(), exact.square().sum()])

    def metric_of(self, sums: Tensor) -> float:
        """Return R² of all rows in `sums`; 0 for a constant target."""
        rows, error, total, squares = (float(value) for value in sums)
        return r2(error, squares - total * total / max(rows, 1.0), squares)


Objective = Classification | Regression
"""Loss, activation and metric for one kind of target."""


def objective_of(encoding: Encoding) -> Objective:
    """Return the objective for the target's type.

    Raises:
        InputError: the target has one class only.
    """
    answers = answers_of(encoding)
    if isinstance(answers, ClassAnswers):
        return Classification(answers.labels)
    return Regression(encoding.target_mean, encoding.target_std)
