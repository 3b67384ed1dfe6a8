"""The answer that never looks at a row: what a model has to beat before its certificate passes."""

from collections.abc import Callable
from dataclasses import dataclass

from millrace.models.common.arrays import Array
from millrace.models.inference.answers import Answers


@dataclass(frozen=True)
class Baseline:
    """The constant answer that is best on the test split.

    Attributes:
        answer: what it always answers, in words.
        metric_name: what `metric` is.
        metric: its metric.
        balanced: what decides between it and a model with the same metric.
        is_telling: whether the test split holds more than one answer.
    """

    answer: str
    metric_name: str
    metric: float
    balanced: float
    is_telling: bool

    def refusal(self, metric: float, balanced: Callable[[], float]) -> str | None:
        """Return why a model does not pass, or None.

        It must be better. With the same metric it is where it is right about more than the
        commonest class, and it passes where the test split has one class only, which tells nothing.

        Args:
            metric: the model's, on the same rows; a NaN is never better.
            balanced: asks for the model's, where it is needed.
        """
        if metric > self.metric:
            return None
        if metric == self.metric:
            mine = balanced()
            if mine > (self.balanced if self.is_telling else 0.0):
                return None
        return (
            f"its {self.metric_name} of {metric:.4f} is no better than {self.metric:.4f}, that of "
            f"always answering {self.answer}"
        )


def baseline_of(meaning: Answers, train: Array, target: Array) -> Baseline:
    """Return the constant answer of a task.

    It is the better one of what the train split says and what the test split does: of many classes
    the commonest one may not occur in a small test split, and any model is better than nothing.

    Args:
        meaning: how answers are read.
        train: targets of the train split.
        target: those of the test split; of one class only, it is that of the train split.
    """
    learnt = [train, target] if meaning.varies(target) else [train]
    answers = max(
        (meaning.constant(each, len(target)) for each in learnt),
        key=lambda each: meaning.metric_of_answers(each, target),
    )
    (said,) = meaning.prediction(answers[:1])
    words = f"{said:.4g}, the mean" if isinstance(said, float) else repr(said)
    return Baseline(
        words,
        meaning.metric,
        meaning.metric_of_answers(answers, target),
        meaning.balanced(answers, target),
        meaning.varies(target),
    )
