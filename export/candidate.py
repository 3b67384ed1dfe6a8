"""A candidate: one exported form of one training run, as it was measured."""

import math
from dataclasses import dataclass
from pathlib import Path

from export.certificate import Stage
from models.pipeline import ExportSpec


@dataclass(frozen=True)
class Candidate:
    """One form of the model.

    Attributes:
        name: `onnx-fp32`, `onnx-int8-static`, …
        path: the file; None if the form could not be made.
        digest: sha256 of the file.
        size_bytes: size of the file.
        latency_ms: median of one row on this machine, with the threads that serving will use.
        stage: difference and metric.
        reason: why it is refused; None if it holds its gates.
    """

    name: str
    path: Path | None = None
    digest: str = ""
    size_bytes: int = 0
    latency_ms: float = 0.0
    stage: Stage | None = None
    reason: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it holds its gates."""
        return self.reason is None


def gate(stage: Stage, spec: ExportSpec) -> str | None:
    """Return why a measured form is refused, or None.

    A NaN fails every comparison, so each is written such that NaN is refused.
    """
    if not _finite(stage):
        return "its answers are not finite"
    if stage.metric_loss is None or not stage.metric_loss <= spec.max_metric_loss:
        loss = "unknown" if stage.metric_loss is None else f"{stage.metric_loss:.2%}"
        return f"metric loss {loss} is more than {spec.max_metric_loss:.2%}"
    return None


def choose(candidates: tuple[Candidate, ...], spec: ExportSpec) -> Candidate | None:
    """Return the candidate that is best by the objective among those that passed, or None.

    Ties go to the one that was named first in the pipeline file.
    """
    passed = [candidate for candidate in candidates if candidate.passed and candidate.stage]
    if not passed:
        return None
    if spec.objective == "size":
        return min(passed, key=lambda c: c.size_bytes)
    if spec.objective == "metric":
        return max(passed, key=lambda c: c.stage.metric or 0.0 if c.stage else 0.0)
    return min(passed, key=lambda c: c.latency_ms)


def fallback(candidates: tuple[Candidate, ...]) -> Candidate | None:
    """Return the form that lost least, where none held the gate.

    None if there is none whose answers and loss are finite.
    """
    known = [c for c in candidates if c.stage and _finite(c.stage) and math.isfinite(_loss(c))]
    return min(known, key=_loss, default=None)


def _loss(candidate: Candidate) -> float:
    loss = None if candidate.stage is None else candidate.stage.metric_loss
    return math.nan if loss is None else loss


def _finite(stage: Stage) -> bool:
    """Whether its differences are known to be finite; one that was not taken is no fault."""
    return all(
        math.isfinite(difference)
        for difference in (stage.golden_difference, stage.test_difference)
        if difference is not None
    )
