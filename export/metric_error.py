"""How sure a metric is, and where it is worst."""

import numpy as np
from scipy.stats import bootstrap

from millrace.models.common.arrays import Array
from millrace.models.families.objective import Objective
from millrace.models.inference.answers import ClassAnswers

LEVEL = 0.95
RESAMPLES = 300


def interval(
    objective: Objective, answers: Array, target: Array
) -> tuple[float | None, float | None]:
    """Return the 95% percentile bootstrap interval of the metric (Efron 1979); no ends for one row.

    Args:
        objective: gives the metric.
        answers: `[rows, outputs]`.
        target: `[rows]`.
    """
    if len(target) < 2:
        return None, None

    def metric(rows: Array) -> float:
        return objective.metric_of_answers(answers[rows], target[rows])

    found = bootstrap(
        (np.arange(len(target)),),
        metric,
        n_resamples=RESAMPLES,
        vectorized=False,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def worst_class(objective: Objective, answers: Array, target: Array) -> tuple[str, float | None]:
    """Return the class with the lowest metric on its own rows, and that; nothing for a number."""
    if not isinstance(objective, ClassAnswers):
        return "", None
    by_class = {}
    for position in np.unique(target):
        own = target == position
        by_class[position] = objective.metric_of_answers(answers[own], target[own])
    worst = min(by_class, key=lambda position: by_class[position])
    return str(objective.labels[int(worst)]), by_class[worst]
