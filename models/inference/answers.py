"""How a served model's answers are read: as classes or as a number. Needs no torch."""

from typing import Protocol

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError
from millrace.models.inference.features import Encoding

Value = str | int | bool | float


class Answers(Protocol):
    """How the answers for one kind of target are read.

    Attributes:
        metric: name of the task metric; higher is better.
        output: name of the model's output.
        outputs: width of the output.
    """

    metric: str
    output: str
    outputs: int

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return the metric of answers `[rows, outputs]` against `target` `[rows]`."""

    def constant(self, train: Array, rows: int) -> Array:
        """Return the baseline's answers `[rows, outputs]`, which depend on the targets alone.

        Args:
            train: targets of the train split.
            rows: how many rows to answer.
        """

    def balanced(self, answers: Array, target: Array) -> float:
        """Return a second metric, for models with the same first one; higher is better."""

    def varies(self, target: Array) -> bool:
        """Return whether the metric can tell a model from one with a constant answer."""

    def prediction(self, answers: Array) -> list[Value]:
        """Return one predicted value for each row."""

    def score(self, answers: Array) -> Array:
        """Return float32 `[rows]`: the probability of the predicted class, or the value."""


class ClassAnswers:
    """Probabilities of classes; the metric is accuracy."""

    metric = "accuracy"
    output = "probabilities"

    def __init__(self, labels: tuple[str | int | bool, ...]) -> None:
        self.labels = labels
        self.outputs = len(labels)

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return the accuracy."""
        return float((answers.argmax(axis=1) == target).mean())

    def constant(self, train: Array, rows: int) -> Array:
        """Return the most frequent class."""
        answers = np.zeros((rows, self.outputs), dtype=np.float32)
        answers[:, np.bincount(train, minlength=self.outputs).argmax()] = 1.0
        return answers

    def balanced(self, answers: Array, target: Array) -> float:
        """Return the balanced accuracy: the mean of the classes' recalls."""
        right = answers.argmax(axis=1) == target
        return float(np.mean([right[target == each].mean() for each in np.unique(target)]))

    def varies(self, target: Array) -> bool:
        """Return whether there are at least two classes."""
        return len(np.unique(target)) > 1

    def prediction(self, answers: Array) -> list[Value]:
        """Return the most probable label of each row."""
        return [self.labels[position] for position in answers.argmax(axis=1)]

    def score(self, answers: Array) -> Array:
        """Return the probability of the predicted label."""
        return np.asarray(answers.max(axis=1), dtype=np.float32)


class NumberAnswers:
    """One number; the metric is R², the share of variance explained."""

    metric = "r2"
    output = "prediction"
    outputs = 1

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return 1 − residual ÷ total sum of squares; 0 where the target does not vary."""
        exact = target.astype(np.float64)
        error = float(np.square(answers[:, 0] - exact).sum())
        spread = float(np.square(exact - exact.mean()).sum())
        return r2(error, spread, float(np.square(exact).sum()))

    def constant(self, train: Array, rows: int) -> Array:
        """Return the mean."""
        return np.full((rows, 1), train.astype(np.float64).mean(), dtype=np.float32)

    def balanced(self, answers: Array, target: Array) -> float:
        """Return 1: of two models with the same metric, none is better."""
        return 1.0

    def varies(self, target: Array) -> bool:
        """Return whether there are at least two values."""
        return bool(np.ptp(target) > 0)

    def prediction(self, answers: Array) -> list[Value]:
        """Return the predicted number of each row."""
        return [float(value) for value in answers[:, 0]]

    def score(self, answers: Array) -> Array:
        """Return the predicted number."""
        return np.asarray(answers[:, 0], dtype=np.float32)


def r2(error: float, spread: float, squares: float) -> float:
    """Return 1 − error ÷ spread; 0 if the spread is within the rounding error of `squares`.

    Args:
        error: sum of squared errors.
        spread: sum of squared distances of the target from its mean.
        squares: sum of the target's squares.
    """
    return 1.0 - error / spread if spread > 1e-14 * squares else 0.0


def answers_of(encoding: Encoding) -> Answers:
    """Return how the answers of a model with this encoding are read.

    Raises:
        InputError: the target has one class only.
    """
    if not encoding.labels:
        return NumberAnswers()
    if len(encoding.labels) < 2:
        raise InputError(
            f"the target {encoding.target!r} has one class only",
            seen=list(encoding.labels),
            valid="two classes or more",
            hint="check dataset.target and the rows of the source",
        )
    return ClassAnswers(encoding.labels)
