"""Which candidates are good enough, and which of them is served."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.export.candidate import Candidate, P, S

MIB = 2**20
NOISE = 0.05
"""Medians of the same variant on an idle machine differ by less, nearly always."""
OBJECTIVES = ("metric", "latency", "throughput", "size")


@dataclass(frozen=True)
class Gates:
    """What a candidate may lose.

    Attributes:
        max_loss: of the metric, relative.
        loss_name: what is lost, in words.
        max_size_mib: of its files; None for any.
        smaller_is_better: of two metrics.
    """

    max_loss: float
    loss_name: str = "metric loss"
    max_size_mib: float | None = None
    smaller_is_better: bool = False


def apply_gates(candidate: Candidate[S, P], gates: Gates) -> Candidate[S, P]:
    """Return a measured candidate with the reason why it is refused, if it is.

    A NaN fails every comparison, so each is written such that NaN is refused.
    """
    return replace(candidate, reason=candidate.reason or _refusal(candidate, gates))


def _refusal(candidate: Candidate[S, P], gates: Gates) -> str | None:
    stage, size = candidate.stage, candidate.size_bytes / MIB
    if stage is None or not stage.is_finite:
        return "its answers are not finite"
    if stage.loss is None or not stage.loss <= gates.max_loss:
        loss = "unknown" if stage.loss is None else f"{stage.loss:.2%}"
        return f"{gates.loss_name} {loss} is more than {gates.max_loss:.2%}"
    if gates.max_size_mib is not None and not size <= gates.max_size_mib:
        has = f"{size * 1024:,.0f} KiB" if size < 1 else f"{size:,.2f} MiB"
        return f"its {has} are more than export.max_size_mib, {gates.max_size_mib:g} MiB"
    return None


def choose(
    candidates: Sequence[Candidate[S, P]], objective: str, gates: Gates
) -> Candidate[S, P] | None:
    """Return the candidate to register, or None if none was measured with finite answers.

    It is the best one by the objective among those that passed; among those as good as the best,
    but for the noise of a measurement, the one that the pipeline file names first. Where none
    passed it is the nearest: the best one by the objective whose loss is within the gate, else the
    one that lost least.

    Args:
        candidates: measured, the gates applied.
        objective: latency, throughput, size or metric.
        gates: what they may lose.
    """
    served = [each for each in candidates if each.is_served and each.path is not None]
    passed = [each for each in served if each.passed]
    if not passed:
        return _nearest(served, objective, gates)
    costs = [cost(each, objective, gates) for each in passed]
    is_timed = objective in ("latency", "throughput")
    limit = min(costs) * (1 + NOISE if is_timed else 1)
    first = (each for each, of_it in zip(passed, costs, strict=True) if of_it <= limit)
    return next(first, passed[0])


def _nearest(
    candidates: Sequence[Candidate[S, P]], objective: str, gates: Gates
) -> Candidate[S, P] | None:
    losses = [
        (each.stage.loss, each)
        for each in candidates
        if each.stage is not None
        and each.stage.is_finite
        and each.stage.loss is not None
        and math.isfinite(each.stage.loss)
    ]
    within = [each for loss, each in losses if loss <= gates.max_loss]
    if within:
        return min(within, key=lambda each: cost(each, objective, gates))
    return min(losses, key=lambda pair: pair[0])[1] if losses else None


def cost(candidate: Candidate[S, P], objective: str, gates: Gates) -> float:
    """Return what is to be small: milliseconds, seconds by unit, bytes, or the metric's loss."""
    speed, stage = candidate.speed, candidate.stage
    if speed is None or stage is None:
        return math.inf
    score = math.inf if stage.score is None else stage.score
    costs = {
        "latency": speed.latency_ms,
        "throughput": 1 / speed.per_second,
        "size": float(candidate.size_bytes),
        "metric": score if gates.smaller_is_better or stage.score is None else -score,
    }
    return costs[objective]


def pareto_front(candidates: Sequence[Candidate[S, P]], gates: Gates) -> frozenset[str]:
    """Return the names of the measured candidates that no other one beats in every objective."""
    costs = {
        each.name: [cost(each, objective, gates) for objective in OBJECTIVES]
        for each in candidates
        if each.speed and each.stage
    }

    def is_beaten(name: str) -> bool:
        return any(
            other != costs[name] and all(b <= a for a, b in zip(costs[name], other, strict=True))
            for other in costs.values()
        )

    return frozenset(name for name in costs if not is_beaten(name))
