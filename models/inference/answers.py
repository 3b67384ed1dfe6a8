"""Reads a served model's answers, as classes or as a number. Needs no torch."""

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError
from millrace.models.inference.features import Encoding

Value = str | int | bool | float


class ClassAnswers:
    """Reads answers that are probabilities of classes.

    Attributes:
        metric: name of the task metric, accuracy; higher is better.
        output: name of the model's output.
        outputs: width of the output.
    """

    metric = "accuracy"
    output = "probabilities"

    def __init__(self, labels: tuple[str | int | bool, ...]) -> None:
        self.labels = labels
        self.outputs = len(labels)

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return the accuracy of answers `[rows, outputs]` against `target` `[rows]`."""
        return float((answers.argmax(axis=1) == target).mean())

    def count_by_class(self, answers: Array, target: Array) -> tuple[Array, Array]:
        """Return the rows of each class, and how many of them are right: int64 `[outputs]` each."""
        right = answers.argmax(axis=1) == target
        rows = np.bincount(target, minlength=self.outputs)
        return rows, np.bincount(target[right], minlength=self.outputs)

    def constant(self, train: Array, rows: int) -> Array:
        """Return the answers of a baseline that always predicts the most frequent class.

        Args:
            train: targets of the train split.
            rows: number of answers, `[rows, outputs]`; all of them share one row in memory.
        """
        answer = np.zeros(self.outputs, dtype=np.float32)
        answer[np.bincount(train, minlength=self.outputs).argmax()] = 1.0
        return np.broadcast_to(answer, (rows, self.outputs))

    def balanced(self, answers: Array, target: Array) -> float:
        """Return the balanced accuracy, which decides between models of the same accuracy."""
        rows, right = self.count_by_class(answers, target)
        return float((right[rows > 0] / rows[rows > 0]).mean())

    def varies(self, target: Array) -> bool:
        """Return whether the target has more than one class; otherwise accuracy says nothing."""
        return len(np.unique(target)) > 1

    def prediction(self, answers: Array) -> list[Value]:
        """Return the most probable label of each row."""
        return [self.labels[position] for position in answers.argmax(axis=1)]

    def score(self, answers: Array) -> Array:
        """Return the probability of the predicted label, float32 `[rows]`."""
        return np.asarray(answers.max(axis=1), dtype=np.float32)


class NumberAnswers:
    """Reads answers that are numbers. Attributes as in `ClassAnswers`; the metric is R²."""

    metric = "r2"
    output = "prediction"
    outputs = 1

    def metric_of_answers(self, answers: Array, target: Array) -> float:
        """Return R² of answers `[rows, 1]` against `target` `[rows]`; 0 for a constant target."""
        exact = target.astype(np.float64)
        error = float(np.square(answers[:, 0] - exact).sum())
        spread = float(np.square(exact - exact.mean()).sum())
        return r2(error, spread, float(np.square(exact).sum()))

    def constant(self, train: Array, rows: int) -> Array:
        """Return the answers `[rows, 1]` of a baseline that always predicts the train mean."""
        return np.full((rows, 1), train.astype(np.float64).mean(), dtype=np.float32)

    def balanced(self, answers: Array, target: Array) -> float:
        """Return 1, so that no model is preferred over another with the same R²."""
        return 1.0

    def varies(self, target: Array) -> bool:
        """Return whether the target has more than one value; otherwise R² says nothing."""
        return bool(np.ptp(target) > 0)

    def prediction(self, answers: Array) -> list[Value]:
        """Return the predicted number of each row."""
        return [float(value) for value in answers[:, 0]]

    def score(self, answers: Array) -> Array:
        """Return the predicted number, float32 `[rows]`."""
        return np.asarray(answers[:, 0], dtype=np.float32)


Answers = ClassAnswers | NumberAnswers
"""The reader of the answers for one kind of target."""


def r2(error: float, spread: float, squares: float) -> float:
    """Return 1 − error ÷ spread; 0 if the spread is within the rounding error of `squares`.

    Args:
        error: sum of squared errors.
        spread: sum of squared distances of the target from its mean.
        squares: sum of the squared targets.
    """
    return 1.0 - error / spread if spread > 1e-14 * squares else 0.0


def answers_of(encoding: Encoding) -> Answers:
    """Return the reader for the answers of a model with this encoding.

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
