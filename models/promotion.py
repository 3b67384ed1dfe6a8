"""Who becomes champion: a decision over plain values."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Promotion:
    """What to do with a new version, and why.

    Attributes:
        challenger: whether it gets the alias `challenger`.
        champion: whether it gets the alias `champion`.
        reason: in a sentence, for people.
    """

    challenger: bool
    champion: bool
    reason: str


def decide(
    *,
    mode: Literal["auto", "manual"],
    passed: bool,
    metric: float,
    champion: int | None,
    champion_metric: float | None,
) -> Promotion:
    """Decide on a new version.

    Args:
        mode: the pipeline's `promotion.mode`.
        passed: whether the version held its gates.
        metric: its metric on the test split; higher is better.
        champion: the champion's version, None if there is none.
        champion_metric: the champion's metric on the same test split; None if it could not be
            measured there, which is never a reason to replace it.
    """
    if not passed:
        return Promotion(False, False, "it did not hold its gates")
    if not math.isfinite(metric):
        return Promotion(False, False, f"its metric is {metric}")
    if mode == "manual":
        return Promotion(
            True, False, "promotion is manual: set the alias champion in the MLflow UI"
        )
    if champion is None:
        return Promotion(True, True, "there was no champion")
    if champion_metric is None:
        return Promotion(True, False, f"champion {champion} cannot be measured on this test split")
    compared = f"{metric:.4f} against {champion_metric:.4f} of champion {champion}"
    if metric >= champion_metric:
        return Promotion(True, True, f"no worse: {compared}")
    return Promotion(True, False, f"worse: {compared}")
