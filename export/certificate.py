"""The certificate: what a model lost on its way from PyTorch to live serving.

Every stage answers the same golden batch and the same test split. The difference is against
PyTorch, the first stage; the metric's loss is relative to PyTorch's.
"""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.bounded_files import bounded_json


@dataclass(frozen=True)
class Stage:
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
        size_bytes: size of its file; None where there is none, or it was not told.
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


@dataclass(frozen=True)
class Certificate:
    """The evidence that is kept with a model version as `certificate.json`.

    Attributes:
        model: registered model.
        candidate: the form that was chosen.
        digest: sha256 of the chosen `model.onnx`.
        dataset: name of the dataset.
        dataset_version: snapshot that the test split is of.
        dataset_digest: digest of that snapshot.
        test_rows: rows of the test split.
        golden_rows: rows of the golden batch.
        metric_name: what `metric` is.
        max_metric_loss: the gate.
        stages: in the order of the way.
        passed: whether the chosen candidate held the gate.
        machine: what the forms were measured on, in words.
        machine_kind: what machines share on which that choice holds.
        reference: the registered version that this one is shown beside, measured as the stages
            are: its teacher, or the model before it was compressed.
        batch_sizes: rows of the requests that the golden batch was asked in, ascending.
        constant: metric on the test split of always answering the same, the commonest class or the
            mean; None in a certificate of before that was measured.
    """

    model: str
    candidate: str
    digest: str
    dataset: str
    dataset_version: int
    dataset_digest: str
    test_rows: int
    golden_rows: int
    metric_name: str
    max_metric_loss: float
    stages: tuple[Stage, ...]
    passed: bool
    machine: str = ""
    machine_kind: str = ""
    reference: Stage | None = None
    batch_sizes: tuple[int, ...] = ()
    constant: float | None = None

    def stage(self, name: str) -> Stage | None:
        """Return the stage of that name."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def with_stage(self, stage: Stage) -> "Certificate":
        """Return the certificate with a stage added, or replaced if it was there."""
        others = tuple(known for known in self.stages if known.name != stage.name)
        return replace(self, stages=(*others, stage))

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Read what `to_json` wrote."""
        values = bounded_json(text)
        stages = tuple(Stage(**stage) for stage in values.pop("stages"))
        reference = values.pop("reference", None)
        values["batch_sizes"] = tuple(values.get("batch_sizes", ()))
        return cls(**values, stages=stages, reference=Stage(**reference) if reference else None)


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
