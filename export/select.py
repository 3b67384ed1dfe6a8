"""Which forms of a language model are good enough, and which of them is served."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.export.candidate import MIB, NOISE
from millrace.export.language.engine_speed import STREAMS
from millrace.export.language.language_variants import EXACT_FORM
from millrace.export.language_candidate import LanguageCandidate, LanguageStage

KINDS = ("metric", "latency", "throughput", "size")


@dataclass(frozen=True)
class Gates:
    """What a form may lose.

    Attributes:
        max_perplexity_increase: relative to transformers'.
        max_size_mib: of the folder; None for any.
    """

    max_perplexity_increase: float = 0.01
    max_size_mib: float | None = None


def judged(candidate: LanguageCandidate, gates: Gates) -> LanguageCandidate:
    """Return a measured candidate with the reason why it is refused, if it is."""
    return replace(candidate, reason=_refusal(candidate, gates))


def beside_unigram(candidate: LanguageCandidate, unigram: float) -> LanguageCandidate:
    """Return a form that held its gates with the reason why not, if it has learnt nothing.

    Args:
        candidate: judged.
        unigram: perplexity on the test split of a model that looks at no other token.
    """
    stage = candidate.stage
    if not candidate.passed or stage is None or stage.perplexity < unigram:
        return candidate
    reason = (
        f"its perplexity of {stage.perplexity:,.1f} is no better than {unigram:,.1f}, that of a "
        "model that looks at no other token"
    )
    return replace(candidate, reason=reason)


def _refusal(candidate: LanguageCandidate, gates: Gates) -> str | None:
    """Return why a measured form is refused, or None; what is not finite is refused."""
    stage, size = candidate.stage, candidate.size_bytes / MIB
    if stage is None or not math.isfinite(stage.perplexity) or not math.isfinite(stage.mean_kl):
        return "its answers are not finite"
    if candidate.name == EXACT_FORM and (reason := inexact(stage)):
        return reason
    if not stage.perplexity_increase <= gates.max_perplexity_increase:
        more = f"{stage.perplexity_increase:.2%}"
        return f"its perplexity rises by {more}, more than {gates.max_perplexity_increase:.2%}"
    if gates.max_size_mib is not None and not size <= gates.max_size_mib:
        has = f"{size * 1024:,.0f} KiB" if size < 1 else f"{size:,.2f} MiB"
        return f"its {has} are more than export.max_size_mib, {gates.max_size_mib:g} MiB"
    return None


def inexact(stage: LanguageStage) -> str | None:
    """Return how the exact form differs from transformers, or None if it does not."""
    if (alike := stage.greedy_equal + stage.greedy_ties) < max(stage.prompts, 1):
        return f"it gives transformers' greedy tokens for {alike} of {stage.prompts} prompts"
    if (other := stage.texts - stage.texts_equal) > 0:
        return f"its tokenizer splits {other} of {stage.texts} texts otherwise"
    return None


def choose(candidates: Sequence[LanguageCandidate], objective: str) -> LanguageCandidate | None:
    """Return the candidate that is best by the objective among those that passed, or None.

    Among those as good as the best, but for the noise of a measurement, it is the one that was
    named first.

    Args:
        candidates: measured and judged.
        objective: latency, throughput, size or metric.
    """
    passed = [each for each in candidates if each.passed and each.is_served]
    costs = [cost(candidate, objective) for candidate in passed]
    is_timed = objective in ("latency", "throughput")
    as_good = min(costs, default=0.0) * (1 + NOISE if is_timed else 1)
    return next((c for c, each in zip(passed, costs, strict=True) if each <= as_good), None)


def cost(candidate: LanguageCandidate, objective: str) -> float:
    """Return what is to be small.

    Latency is the time to the first token and of one more, milliseconds at one stream; throughput
    is seconds by token at the most streams; size is bytes; metric is perplexity.
    """
    speed, stage = candidate.speed, candidate.stage
    if speed is None or stage is None:
        return math.inf
    costs = {
        "latency": speed.latency_ms,
        "throughput": 1 / speed.tokens_per_second[max(STREAMS)],
        "size": float(candidate.size_bytes),
        "metric": stage.perplexity,
    }
    return costs[objective]


def pareto(candidates: Sequence[LanguageCandidate]) -> tuple[LanguageCandidate, ...]:
    """Return the measured forms that no other one beats in all that an objective can be at once."""
    measured = [each for each in candidates if each.speed and each.stage]
    costs = {each.name: [cost(each, kind) for kind in KINDS] for each in measured}

    def beaten(name: str) -> bool:
        return any(
            other != costs[name] and all(b <= a for a, b in zip(costs[name], other, strict=True))
            for other in costs.values()
        )

    return tuple(each for each in measured if not beaten(each.name))
