"""A candidate: one exported form of one training run, as it was measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millrace.export.certificate import Stage
from millrace.models.config.export_spec import ExportSpec


@dataclass(frozen=True)
class Speed:
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


MIB = 2**20
NOISE = 0.05
"""Medians of the same form on an idle machine differ by less, nearly always."""


@dataclass(frozen=True)
class Candidate:
    """One form of the model.

    Attributes:
        name: `onnx-fp32`, `onnx-int8-static`, …
        path: the file; None if the form could not be made.
        digest: sha256 of the file.
        size_bytes: size of the file.
        speed: on this machine, with the threads that serving will use.
        stage: difference and metric.
        reason: why it is refused; None if it holds its gates.
        notes: how it was found, where that took a search.
        is_engine: whether it runs on one GPU with one TensorRT only: it is measured to compare the
            others with, and never chosen.
    """

    name: str
    path: Path | None = None
    digest: str = ""
    size_bytes: int = 0
    speed: Speed | None = None
    stage: Stage | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    is_engine: bool = False

    @property
    def passed(self) -> bool:
        """Whether it holds its gates."""
        return self.reason is None


def judged(candidate: Candidate, spec: ExportSpec, latency_slo_ms: float | None) -> Candidate:
    """Return a measured candidate with the reason why it is refused, if it is.

    Args:
        candidate: the form.
        spec: gives the gates.
        latency_slo_ms: p99 of one row that serving must hold; None for any.
    """
    return replace(candidate, reason=_refusal(candidate, spec, latency_slo_ms))


def _refusal(candidate: Candidate, spec: ExportSpec, latency_slo_ms: float | None) -> str | None:
    """Return why a measured form is refused, or None.

    A NaN fails every comparison, so each is written such that NaN is refused.
    """
    stage, speed, size = candidate.stage, candidate.speed, candidate.size_bytes / MIB
    if stage is None or not _finite(stage):
        return "its answers are not finite"
    if stage.metric_loss is None or not stage.metric_loss <= spec.max_metric_loss:
        loss = "unknown" if stage.metric_loss is None else f"{stage.metric_loss:.2%}"
        return f"metric loss {loss} is more than {spec.max_metric_loss:.2%}"
    if spec.max_size_mib is not None and not size <= spec.max_size_mib:
        has = f"{size * 1024:,.0f} KiB" if size < 1 else f"{size:,.2f} MiB"
        return f"its {has} are more than export.max_size_mib, {spec.max_size_mib:g} MiB"
    if latency_slo_ms is not None and (speed is None or not speed.p99_ms <= latency_slo_ms):
        p99 = "unknown" if speed is None else f"{speed.p99_ms:.2f} ms"
        return f"p99 {p99} is more than serving.latency_slo_ms, {latency_slo_ms:g} ms"
    return None


def choose(candidates: tuple[Candidate, ...], spec: ExportSpec) -> Candidate | None:
    """Return the candidate that is best by the objective among those that passed, or None.

    Among those as good as the best, but for the noise of a measurement, it is the one that was
    named first in the pipeline file.
    """
    passed = [candidate for candidate in candidates if candidate.passed and not candidate.is_engine]
    costs = [_cost(candidate, spec.objective) for candidate in passed]
    is_timed = spec.objective in ("latency", "throughput")
    as_good = min(costs, default=0.0) * (1 + NOISE if is_timed else 1)
    return next((c for c, cost in zip(passed, costs, strict=True) if cost <= as_good), None)


def _cost(candidate: Candidate, objective: str) -> float:
    """Return what is to be small: milliseconds, seconds a row, bytes, or the lost metric."""
    if candidate.speed is None or candidate.stage is None:
        return math.inf
    costs = {
        "latency": candidate.speed.p50_ms,
        "throughput": 1 / candidate.speed.rows_per_second,
        "size": float(candidate.size_bytes),
        "metric": -(candidate.stage.metric or 0.0),
    }
    return costs[objective]


def pareto(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the measured forms that no other one beats in all that an objective can be at once."""
    kinds = ("metric", "latency", "throughput", "size")
    costs = {c.name: [_cost(c, kind) for kind in kinds] for c in candidates if c.speed and c.stage}

    def beaten(name: str) -> bool:
        return any(
            other != costs[name] and all(b <= a for a, b in zip(costs[name], other, strict=True))
            for other in costs.values()
        )

    return tuple(c for c in candidates if c.name in costs and not beaten(c.name))


def fallback(candidates: tuple[Candidate, ...], spec: ExportSpec) -> Candidate | None:
    """Return the form to show where none held its gates: as good as is allowed, else the best.

    None if there is none whose answers and loss are finite.
    """
    forms = [c for c in candidates if not c.is_engine]
    known = [c for c in forms if c.stage and _finite(c.stage) and math.isfinite(_loss(c))]
    good = [c for c in known if _loss(c) <= spec.max_metric_loss]
    if good:
        return min(good, key=lambda each: _cost(each, spec.objective))
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
