"""The measurements of an ONNX model: its speed, its stages and its certificate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from millrace.export.candidate import Candidate
from millrace.export.certificate import Certificate, CertifiedVariant
from millrace.models.common.arrays import Array
from millrace.models.inference.answers import Answers
from millrace.models.inference.row_batches import PART_ROWS


@dataclass(frozen=True)
class GraphSpeed:
    """The speed and memory of a variant, measured with as many threads as one serving instance.

    Attributes:
        p50_ms: median latency of one row, in milliseconds.
        p99_ms: 99th percentile of that latency, in milliseconds.
        rows_per_second: throughput of full batches.
        peak_memory_bytes: peak memory of the whole process.
        other_load: share of the cores that other programs took meanwhile.
    """

    p50_ms: float
    p99_ms: float
    rows_per_second: float
    peak_memory_bytes: int
    other_load: float = 0.0

    @property
    def latency_ms(self) -> float:
        """The median latency of one row."""
        return self.p50_ms

    @property
    def per_second(self) -> float:
        """Rows per second in full batches."""
        return self.rows_per_second


@dataclass(frozen=True)
class GraphStage:
    """One stage from training to live serving, with its differences from the trained model.

    Attributes:
        name: `pytorch`, the name of a candidate, or `triton`.
        golden_difference: largest absolute difference from PyTorch on the golden batch.
        test_difference: largest absolute difference from PyTorch on the test split; None if the
            stage was not run on the test split.
        metric: task metric on the test split; None if the stage was not run on the test split.
        metric_loss: relative loss of the metric against PyTorch; negative is a gain.
        metric_low: lower end of the metric's 95% interval.
        metric_high: upper end of the metric's 95% interval.
        worst_class: the class with the lowest metric on its own rows; empty in regression.
        worst_metric: the metric of that class.
        ties: the GPU, and the versions of its driver, TensorRT and CUDA, for which the measurements
            are valid; empty if TensorRT was not used.
        size_bytes: size of the file; None if there is no file, or its size is not known.
        serving_rows: number of test rows that were answered in batches of serving's size. The other
            test rows were answered in larger batches, which give the same answers. None if unknown.
    """

    name: str
    golden_difference: float
    test_difference: float | None = None
    metric: float | None = None
    metric_loss: float | None = None
    metric_low: float | None = None
    metric_high: float | None = None
    worst_class: str = ""
    worst_metric: float | None = None
    ties: str = ""
    size_bytes: int | None = None
    serving_rows: int | None = None

    @property
    def score(self) -> float | None:
        """The task metric on the test split."""
        return self.metric

    @property
    def loss(self) -> float | None:
        """The relative loss of the metric against PyTorch."""
        return self.metric_loss

    @property
    def is_finite(self) -> bool:
        """Whether all measured differences are finite."""
        measured = (self.golden_difference, self.test_difference)
        return all(math.isfinite(each) for each in measured if each is not None)


GraphCandidate = Candidate[GraphStage, GraphSpeed]


@dataclass(frozen=True, kw_only=True)
class GraphCertificate(Certificate):
    """The certificate of an ONNX model.

    Attributes:
        stages: PyTorch, every measured candidate and `triton`. The stage `triton` is missing until
            a release or `millrace certify` has measured the model on Triton.
        forms: every candidate of the pipeline file, with its measurements.
        test_rows: number of rows of the test split.
        golden_rows: number of rows of the golden batch.
        metric_name: name of the metric.
        max_metric_loss: largest relative loss of the metric that passes.
        reference: stage of the registered version that the model is compared with (the teacher, or
            the model before compression). None if there is no such version, or if it could not be
            measured.
        batch_sizes: numbers of rows of the requests into which the golden batch was cut, ascending.
        constant: metric of a constant prediction (the most frequent class, or the mean) on the test
            split; None in old certificates, which do not have this field.
    """

    stages: tuple[GraphStage, ...] = ()
    forms: tuple[CertifiedVariant[GraphStage, GraphSpeed], ...] = ()
    test_rows: int
    golden_rows: int
    metric_name: str
    max_metric_loss: float
    reference: GraphStage | None = None
    batch_sizes: tuple[int, ...] = ()
    constant: float | None = None

    @property
    def chosen(self) -> GraphStage | None:
        """The stage of the chosen candidate; None if it was not measured."""
        return self.stage(self.candidate)

    @property
    def golden_difference(self) -> float:
        """Largest difference of the chosen candidate on the golden batch; 0 if unknown."""
        return self.chosen.golden_difference if self.chosen else 0.0

    def stage(self, name: str) -> GraphStage | None:
        """Return the stage with a name; None if there is none."""
        found: GraphStage | None = super().stage(name)
        return found

    def with_stage(self, stage: GraphStage) -> "GraphCertificate":
        """Return the certificate with a stage added; it replaces a stage of the same name."""
        others = tuple(known for known in self.stages if known.name != stage.name)
        return replace(self, stages=(*others, stage))


def largest_difference(answers: Array, reference: Array) -> float:
    """Return the largest absolute difference; infinite for a wrong shape or a non-finite value."""
    if answers.shape != reference.shape:
        return math.inf
    largest = 0.0
    for start in range(0, len(answers), PART_ROWS):
        part = answers[start : start + PART_ROWS].astype(np.float64)
        if not np.isfinite(part).all():
            return math.inf
        difference = np.abs(part - reference[start : start + PART_ROWS])
        largest = np.maximum(largest, difference.max(initial=0.0))  # NaN stays NaN
    return float(largest)


def relative_loss(metric: float, reference: float) -> float:
    """Return (reference − metric) ÷ |reference|: 0.01 means one percent worse."""
    if reference == 0:
        return 0.0 if metric >= 0 else float("inf")
    return (reference - metric) / abs(reference)


@dataclass(frozen=True)
class Baseline:
    """The best constant prediction on the test split; a model that is no better is not certified.

    Attributes:
        answer: the constant prediction, in words.
        metric_name: name of the metric.
        metric: metric of the constant prediction.
        balanced: balanced metric of the constant prediction: balanced accuracy for classes, 1 in
            regression. It is compared if a model has the same metric as the constant prediction.
        is_telling: whether the test split has more than one target value.
    """

    answer: str
    metric_name: str
    metric: float
    balanced: float
    is_telling: bool

    def refusal(self, metric: float, balanced: Callable[[], float]) -> str | None:
        """Return why a model is no better than the constant prediction, or None if it is better.

        If both metrics are equal, the model is better if its balanced metric is higher. If the test
        split has only one class, an equal metric and a positive balanced metric are enough.

        Args:
            metric: the model's metric on the same rows; NaN is never better.
            balanced: returns the model's balanced metric; called only if needed.
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
    """Return the best constant prediction of a task on the test split.

    It is the better of two: the constant from the train split and the one from the test split. The
    train split alone is not enough, because its most frequent class may be missing in a small test
    split, and then any model would be better.

    Args:
        meaning: interprets the model's outputs.
        train: targets of the train split.
        target: targets of the test split. If all are equal, the train split's constant is used.
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
