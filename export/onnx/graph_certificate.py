"""What is measured of an ONNX graph: its speed, its stages, and its certificate."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from millrace.export.candidate import Candidate
from millrace.export.certificate import Certificate, CertifiedVariant
from millrace.models.common.arrays import Array
from millrace.models.inference.answers import Answers


@dataclass(frozen=True)
class GraphSpeed:
    """What was measured with the threads of one instance.

    Attributes:
        p50_ms: median latency of one row, milliseconds; so p99_ms.
        rows_per_second: throughput of full batches.
        peak_memory_bytes: of the process, all that it loaded included.
    """

    p50_ms: float
    p99_ms: float
    rows_per_second: float
    peak_memory_bytes: int

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
    """One stage of the way.

    Attributes:
        name: `pytorch`, the name of a candidate, or `triton`.
        golden_difference: largest absolute difference from PyTorch on the golden batch.
        test_difference: the same on the test split; None where it was not run on it.
        metric: task metric on the test split; None likewise.
        metric_loss: relative loss of the metric against PyTorch; negative is a gain.
        metric_low: lower end of the metric's 95% interval; so metric_high.
        worst_class: the class with the lowest metric on its own rows; empty for a number.
        worst_metric: that metric.
        ties: GPU, driver, TensorRT and CUDA that it was measured with; empty without TensorRT.
        size_bytes: size of its file; None if there is none, or it is not known.
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
        """Whether its differences are finite; one that was not measured is no fault."""
        measured = (self.golden_difference, self.test_difference)
        return all(math.isfinite(each) for each in measured if each is not None)


GraphCandidate = Candidate[GraphStage, GraphSpeed]


@dataclass(frozen=True, kw_only=True)
class GraphCertificate(Certificate):
    """The certificate of an ONNX graph.

    Attributes:
        stages: PyTorch, every candidate that was measured, and `triton` once a release has asked.
        test_rows: rows of the test split.
        golden_rows: rows of the golden batch.
        metric_name: what `metric` is.
        max_metric_loss: the gate.
        reference: the registered version that this one is shown beside, measured as the stages
            are: its teacher, or the model before it was compressed.
        batch_sizes: rows of the requests that the golden batch was asked in, ascending.
        constant: metric on the test split of always answering the same, the commonest class or the
            mean; None in a certificate of before that was measured.
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

    def stage(self, name: str) -> GraphStage | None:
        """Return the stage of that name; None if there is none."""
        found: GraphStage | None = super().stage(name)
        return found

    def with_stage(self, stage: GraphStage) -> "GraphCertificate":
        """Return the certificate with a stage added, or replaced if it was there."""
        others = tuple(known for known in self.stages if known.name != stage.name)
        return replace(self, stages=(*others, stage))


def largest_difference(answers: Array, reference: Array) -> float:
    """Return the largest absolute difference; infinite where an answer is not finite."""
    if answers.shape != reference.shape or not np.isfinite(answers).all():
        return float("inf")
    return float(np.abs(answers.astype(np.float64) - reference).max(initial=0.0))


def relative_loss(metric: float, reference: float) -> float:
    """Return (reference − metric) ÷ |reference|: 0.01 means one percent worse."""
    if reference == 0:
        return 0.0 if metric >= 0 else float("inf")
    return (reference - metric) / abs(reference)


@dataclass(frozen=True)
class Baseline:
    """The best constant answer on the test split; a model that is no better is not certified.

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
