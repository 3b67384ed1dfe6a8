"""The scores of two versions on the same rows, and which of both is better by them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.counted import counted

Metric = Literal["accuracy", "r2", "perplexity"]
Verdict = Literal["better", "worse", "no difference shown"]
LEVEL = 0.05
"""Probability that two equal versions are called different: half of it better, half of it worse."""


@dataclass(frozen=True)
class PairedResult:
    """How much the second version is better than the first one.

    Attributes:
        rows: number of rows.
        first: the metric of the first version.
        second: the metric of the second version.
        difference: by how much the second is better: in accuracy or R², or for perplexity in nats
            a token, positive if the second loses fewer.
        low: lower end of the difference's 95% interval.
        high: its upper end.
        p_value: probability of so large a difference if both were equal.
        test: the test, in words.
    """

    rows: int
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    test: str

    @property
    def verdict(self) -> Verdict:
        """Return whether the second version is better than the first one."""
        if not self.p_value < LEVEL:
            return "no difference shown"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class PairedScores:
    """The scores of two versions on the same rows.

    Attributes:
        metric: what is compared.
        first: scores of the first version, `[rows]`: for accuracy 1 where it is right and else 0,
            for R² the squared error, for perplexity the loss of a text in nats.
        second: scores of the second version.
        weights: for perplexity the tokens of each text; else 1.
        spread: for R² the mean squared distance of the target from its mean; else 1.
        slices: the values of columns in these rows, by column.
    """

    metric: Metric
    first: Array
    second: Array
    weights: Array
    spread: float = 1.0
    slices: Mapping[str, Array] = field(default_factory=dict)

    def of(self, rows: Array) -> "PairedScores":
        """Return the scores of some rows, bool `[rows]`."""
        return PairedScores(
            self.metric, self.first[rows], self.second[rows], self.weights[rows], self.spread
        )

    def values(self) -> tuple[float, float]:
        """Return the metric of both versions."""
        one, two = (float(each.sum() / self.weights.sum()) for each in (self.first, self.second))
        if self.metric == "accuracy":
            return one, two
        if self.metric == "r2":
            return (1 - one / self.spread, 1 - two / self.spread) if self.spread else (0.0, 0.0)
        return math.exp(one), math.exp(two)

    def result(self) -> PairedResult:
        """Compare both versions.

        Hits and misses by McNemar's test with the mid-p value (Fagerland, Lydersen and Laake 2013,
        "The McNemar test for binary matched-pairs data"), with the interval of Agresti and Min
        (2005). Errors and losses by a paired t-test, where a text counts by its tokens.
        """
        if self.metric == "accuracy":
            return self._mcnemar()
        return self._paired_t()

    def _mcnemar(self) -> PairedResult:
        from scipy.stats import binom

        rows = len(self.first)
        lost = int(((self.first == 1) & (self.second == 0)).sum())
        won = int(((self.first == 0) & (self.second == 1)).sum())
        changed, fewer = lost + won, min(lost, won)
        p_value = 1.0
        if changed:
            below = binom.cdf(fewer - 1, changed, 0.5)
            p_value = min(1.0, 2 * float(below + 0.5 * binom.pmf(fewer, changed, 0.5)))
        total, gain = rows + 2, won - lost
        middle = gain / total
        half = 1.96 * math.sqrt(max(changed + 1 - gain * gain / total, 0.0)) / total
        test = f"McNemar's test: only the second is right in {counted(won, 'row')}, "
        test += f"only the first in {lost:,}"
        difference = gain / rows if rows else 0.0
        low, high = max(-1.0, middle - half), min(1.0, middle + half)
        return PairedResult(rows, *self.values(), difference, low, high, p_value, test)

    def _paired_t(self) -> PairedResult:
        from scipy.stats import t as student

        rows, scale = len(self.first), float(self.weights.sum()) * (self.spread or 1.0)
        gains = self.first - self.second
        difference = float(gains.sum()) / scale
        what = "squared errors" if self.metric == "r2" else "losses of texts"
        test = f"paired t-test of the {what}"
        values = self.values()
        if rows < 2:
            return PairedResult(rows, *values, difference, -math.inf, math.inf, 1.0, test)
        rest = gains - gains.sum() * self.weights / self.weights.sum()
        error = math.sqrt(rows / (rows - 1) * float(np.square(rest).sum())) / scale
        if not error:
            p_value = 0.0 if difference else 1.0
            return PairedResult(rows, *values, difference, difference, difference, p_value, test)
        p_value = 2 * float(student.sf(abs(difference) / error, rows - 1))
        half = float(student.ppf(1 - LEVEL / 2, rows - 1)) * error
        low, high = difference - half, difference + half
        return PairedResult(rows, *values, difference, low, high, p_value, test)
