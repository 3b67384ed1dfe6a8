"""The 95% interval of a metric on the test split: Wilson's for accuracy, a bootstrap for R²."""

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.comparison.live_metric import wilson
from millrace.models.families.objective import Objective
from millrace.models.inference.answers import ClassAnswers, r2

LEVEL = 0.95
RESAMPLES = 1000
BLOCKS = 1000
"""Most blocks of rows that the bootstrap draws from; its cost does not grow with the rows."""


def interval(
    objective: Objective, answers: Array, target: Array
) -> tuple[float | None, float | None]:
    """Return both ends of the metric's 95% interval; both are None for fewer than two rows.

    Args:
        objective: training objective, which has the metric.
        answers: the variant's outputs, `[rows, outputs]`.
        target: target values, `[rows]`.
    """
    if len(target) < 2:
        return None, None
    if isinstance(objective, ClassAnswers):
        rows, right = objective.count_by_class(answers, target)
        return wilson(int(right.sum()), int(rows.sum()))
    return r2_interval(answers[:, 0], target)


def r2_interval(answers: Array, target: Array) -> tuple[float, float]:
    """Return both ends of R²'s percentile bootstrap interval (Efron 1979).

    R² is a function of sums over the rows, so a resample is drawn as counts of rows. Of more than
    `BLOCKS` rows, blocks of every `BLOCKS`-th row are drawn, which gives the same interval for
    rows in any order.

    Args:
        answers: predictions, `[rows]`.
        target: target values, `[rows]`.
    """
    exact = target.astype(np.float64)
    centred = exact - exact.mean()
    block = np.arange(len(exact)) % BLOCKS
    sums = np.stack(
        [
            np.bincount(block, weights)
            for weights in (
                np.square(answers - exact),
                centred,
                np.square(centred),
                np.ones(len(exact)),
            )
        ],
        axis=1,
    )
    count = len(sums)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES) @ sums
    found = [r2(e, s2 - s * s / n, s2) for e, s, s2, n in drawn.tolist()]
    low, high = np.quantile(found, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)
