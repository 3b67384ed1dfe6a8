"""Who becomes champion: a decision over plain values."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Comparison:
    """The version that a new one would take the place of, on the new one's test split.

    Attributes:
        version: its number.
        is_live: whether it is live; else it has the alias champion.
        metric_name: what `metric` is.
        metric: None if it could not be measured there.
        candidate: its form.
        size_bytes: of its files.
    """

    version: int
    is_live: bool
    metric_name: str
    metric: float | None
    candidate: str = ""
    size_bytes: int | None = None


@dataclass(frozen=True)
class Promotion:
    """What to do with a new version, and why.

    Attributes:
        challenger: whether it gets the alias `challenger`.
        champion: whether it gets the alias `champion`.
        reason: in a sentence, for people.
        release: what a release of it would say; empty where it did not hold its gates.
        beside: what it would take the place of; None where there is nothing.
    """

    challenger: bool
    champion: bool
    reason: str
    release: str = ""
    beside: Comparison | None = None


def decide(
    *,
    mode: Literal["auto", "manual"],
    refusal: str | None,
    metric: float,
    champion: int | None,
    champion_metric: float | None,
    smaller_is_better: bool = False,
    requirement: str | None = None,
) -> Promotion:
    """Decide on a new version.

    Args:
        mode: the pipeline's `promotion.mode`.
        refusal: why the version did not hold its gates; None if it did.
        metric: its metric on the test split.
        champion: the champion's version, None if there is none.
        champion_metric: the champion's metric on the same test split; None if it could not be
            measured there, which is never a reason to replace it.
        smaller_is_better: of two metrics, as of two perplexities.
        requirement: why a release would refuse it, but for an approval that is still to come.
    """
    if refusal is not None:
        return Promotion(False, False, f"it did not hold its gates: {refusal}")
    if not math.isfinite(metric):
        return Promotion(False, False, f"its metric is {metric}")
    if requirement is not None:
        return Promotion(False, False, f"a release would refuse it: {requirement}")
    if mode == "manual":
        return Promotion(
            True, False, "promotion is manual: set the alias champion in the MLflow UI"
        )
    if champion is None:
        return Promotion(True, True, "there was no champion")
    if champion_metric is None:
        return Promotion(True, False, f"champion {champion} cannot be measured on this test split")
    compared = f"{metric:.4f} against {champion_metric:.4f} of champion {champion}"
    no_worse = metric <= champion_metric if smaller_is_better else metric >= champion_metric
    if no_worse:
        return Promotion(True, True, f"no worse: {compared}")
    return Promotion(True, False, f"worse: {compared}")
