"""Decides which candidates pass the gates, and which of them is registered."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.export.candidate import Candidate, P, S

MIB = 2**20
NOISE = 0.05
"""Relative noise of a median latency: on an idle machine, repeated medians nearly always differ by
less."""
OBJECTIVES = ("metric", "latency", "throughput", "size")


@dataclass(frozen=True)
class Gates:
    """The limits that a candidate must meet.

    Attributes:
        max_loss: largest relative loss of the metric.
        loss_name: name of that loss in messages.
        max_size_mib: largest size of the candidate's files; None for no limit.
        smaller_is_better: whether a smaller metric is better.
    """

    max_loss: float
    loss_name: str = "metric loss"
    max_size_mib: float | None = None
    smaller_is_better: bool = False


def apply_gates(candidate: Candidate[S, P], gates: Gates) -> Candidate[S, P]:
    """Return a measured candidate, with the reason if a gate refuses it.

    A comparison with NaN is false, so each comparison is written such that NaN is refused.
    """
    return replace(candidate, reason=candidate.reason or _refusal(candidate, gates))


def _refusal(candidate: Candidate[S, P], gates: Gates) -> str | None:
    stage, size = candidate.stage, candidate.size_bytes / MIB
    if stage is None or not stage.is_finite:
        return "its answers are not finite"
    if stage.loss is None or not stage.loss <= gates.max_loss:
        loss = "unknown" if stage.loss is None else f"{stage.loss:.2%}"
        return f"{gates.loss_name} {loss} is more than the limit of {gates.max_loss:.2%}"
    if gates.max_size_mib is not None and not size <= gates.max_size_mib:
        has = f"{size * 1024:,.0f} KiB" if size < 1 else f"{size:,.2f} MiB"
        return f"its size {has} is more than export.max_size_mib, {gates.max_size_mib:g} MiB"
    return None


def choose(
    candidates: Sequence[Candidate[S, P]], objective: str, gates: Gates
) -> Candidate[S, P] | None:
    """Return the candidate to register, or None if none was measured with finite outputs.

    Among the candidates that passed, this is the best by the objective. If several are as good as
    the best, within measurement noise, it is the one that the pipeline file names first. The noise
    is larger by the share of the machine that other programs took during the measurements. If no
    candidate passed, it is the best by the objective among the candidates with a loss within the
    limit. If no loss is within the limit, it is the candidate with the smallest loss.

    Args:
        candidates: measured candidates, with the gates applied.
        objective: latency, throughput, size or metric.
        gates: limits that the candidates must meet.
    """
    served = [each for each in candidates if each.is_served and each.path is not None]
    passed = [each for each in served if each.passed]
    if not passed:
        return _nearest(served, objective, gates)
    return next(iter(_best(passed, objective, gates)), passed[0])


def _best(passed: Sequence[Candidate[S, P]], objective: str, gates: Gates) -> list[Candidate[S, P]]:
    """Return the candidates that are as good as the best by the objective, in their order."""
    costs = [cost(each, objective, gates) for each in passed]
    noise = 0.0
    if objective in ("latency", "throughput"):
        noise = NOISE + max(each.speed.other_load if each.speed else 0.0 for each in passed)
    limit = min(costs) * (1 + noise)
    return [each for each, of_it in zip(passed, costs, strict=True) if of_it <= limit]


def ties_with(
    chosen: Candidate[S, P], candidates: Sequence[Candidate[S, P]], objective: str, gates: Gates
) -> tuple[str, ...]:
    """Return the names of the candidates that are as good as the chosen one, within the noise."""
    passed = [each for each in candidates if each.is_served and each.path and each.passed]
    if chosen not in passed:
        return ()
    return tuple(each.name for each in _best(passed, objective, gates) if each is not chosen)


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
    """Return a candidate's cost by an objective; smaller is better.

    The cost is milliseconds for latency, seconds per row or token for throughput, and bytes for
    size. For metric, it is the metric itself, negated if a larger metric is better.
    """
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
    """Return the names of the candidates on the Pareto front over all objectives."""
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
