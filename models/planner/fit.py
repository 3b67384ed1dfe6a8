"""Times as a sum of physical terms, whose weights are fitted on measurements.

Each term is what a part of the work would take at the device's stated figures, so a weight near 1
says that the figure holds, and a weight of 2 that the part takes twice as long. Weights are not
negative, and relative errors count, so that short and long times weigh the same. An estimate has an
interval from the errors on rows that the weights were not fitted on.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.models.common.arrays import Array

Terms = Mapping[str, float]
"""Values of the terms of one configuration, by name; in seconds, or as counts."""
COVERAGE = 0.9
"""Share of measurements that an interval is meant to hold."""
FEW_ROWS = 40
"""Number of errors below which the interval is Student's, for logarithms of the errors, and not
the errors' own quantiles."""
ROBUST_ROUNDS = 20
LEAST_ERROR = 0.03
"""Relative error below which rows weigh the same in a robust fit."""


Bounds = Mapping[str, tuple[float, float]]
"""Smallest and largest weight, by term."""


@dataclass(frozen=True)
class Estimate:
    """An estimated value with its interval.

    Attributes:
        value: the value.
        low: lower end of the interval that holds a measurement in `COVERAGE` of the cases.
        high: its upper end.
        extrapolated: the quantities that lie outside of the fitted region, in words.
    """

    value: float
    low: float
    high: float
    extrapolated: tuple[str, ...] = ()

    def holds(self, measured: float) -> bool:
        """Return whether a measurement lies in the interval."""
        return self.low <= measured <= self.high


@dataclass(frozen=True)
class Fit:
    """Fitted weights.

    Attributes:
        weights: weight of each term.
        low: lower end of the interval, relative to the estimate.
        high: its upper end.
        rows: number of measurements.
        region: smallest and largest value of what describes a configuration, among these rows.
    """

    weights: Mapping[str, float]
    low: float
    high: float
    rows: int
    region: Mapping[str, tuple[float, float]]

    def estimate(self, terms: Terms, described: Mapping[str, float] | None = None) -> Estimate:
        """Return the estimate for a configuration.

        Args:
            terms: the values of its terms; each weight needs one.
            described: what describes it, by the names of `region`.
        """
        value = sum(weight * terms[name] for name, weight in self.weights.items())
        outside = tuple(
            f"{name} {number:g} is outside of {self.region[name][0]:g} to {self.region[name][1]:g}"
            for name, number in (described or {}).items()
            if name in self.region and not self._is_inside(name, number)
        )
        return Estimate(value, value * self.low, value * self.high, outside)

    def _is_inside(self, name: str, number: float) -> bool:
        low, high = self.region[name]
        return low * (1 - 1e-9) <= number <= high * (1 + 1e-9)


def fit_terms(
    rows: Sequence[Terms],
    measured: Sequence[float],
    names: Sequence[str],
    *,
    groups: Sequence[Hashable] | None = None,
    described: Sequence[Mapping[str, float]] = (),
    robust: bool = False,
    estimated: Collection[int] | None = None,
    bounds: Bounds | None = None,
) -> Fit:
    """Fit the weights of terms by non-negative least squares on relative errors.

    Args:
        rows: the terms of each measurement.
        measured: the measurements, all above 0.
        names: the terms to use.
        groups: what belongs together when a part is held out for the interval; None: each row by
            itself.
        described: what describes each row; gives the fitted region.
        robust: weigh large errors less: sum of absolute relative errors, by reweighting.
        estimated: numbers of the measurements like those that will be estimated, whose errors give
            the interval; None: all.
        bounds: the smallest and the largest weight of a term; of others 0 and infinity.
    """
    import numpy as np

    values = np.array([[row[name] for name in names] for row in rows])
    times = np.asarray(measured, dtype=float)
    limits = _limits(names, bounds)
    weights = _solve(values / times[:, None], robust, limits)
    errors = cross_validated(rows, measured, names, groups=groups, robust=robust, bounds=bounds)
    low, high = interval_of(
        [ratio for row, ratio in errors.items() if estimated is None or row in estimated]
    )
    keys = described[0] if described else ()
    region = {key: (min(d[key] for d in described), max(d[key] for d in described)) for key in keys}
    fitted = dict(zip(names, map(float, weights), strict=True))
    return Fit(fitted, low, high, len(times), region)


def cross_validated(
    rows: Sequence[Terms],
    measured: Sequence[float],
    names: Sequence[str],
    *,
    groups: Sequence[Hashable] | None = None,
    robust: bool = False,
    bounds: Bounds | None = None,
) -> dict[int, float]:
    """Return measured ÷ estimated of each row, by a fit on the rows of the other groups.

    A group is left out if the rest has fewer rows than terms.
    """
    import numpy as np

    values = np.array([[row[name] for name in names] for row in rows])
    times = np.asarray(measured, dtype=float)
    belonging = list(range(len(times))) if groups is None else list(groups)
    ratios: dict[int, float] = {}
    for group in dict.fromkeys(belonging):
        held = np.array([each == group for each in belonging])
        if (~held).sum() < len(names):
            continue
        weights = _solve(values[~held] / times[~held, None], robust, _limits(names, bounds))
        for index in np.flatnonzero(held):
            estimate = float(values[index] @ weights)
            if estimate > 0:
                ratios[int(index)] = float(times[index]) / estimate
    return ratios


def _limits(names: Sequence[str], bounds: Bounds | None) -> "tuple[Array, Array]":
    """Return the smallest and the largest weight of each term."""
    import numpy as np

    pairs = [(bounds or {}).get(name, (0.0, math.inf)) for name in names]
    least, most = zip(*pairs, strict=True)
    return np.array(least), np.array(most)


def _solve(relative: "Array", robust: bool, limits: "tuple[Array, Array]") -> "Array":
    """Return the weights whose sum of terms is nearest to 1 in every row.

    Args:
        relative: terms ÷ measurement, `[rows, terms]`.
        robust: minimize absolute errors instead of squares (iteratively reweighted least squares).
        limits: the smallest and the largest weight of each term.
    """
    import numpy as np

    least, most = limits
    # The solvers want columns of similar size.
    sizes = np.linalg.norm(relative, axis=0)
    sizes[sizes == 0] = 1
    scaled, rest = relative / sizes, 1 - relative @ least
    room = (most - least) * sizes
    weights = _least_squares(scaled, rest, room)
    for _ in range(ROBUST_ROUNDS if robust else 0):
        errors = np.abs(scaled @ weights - rest)
        emphasis = 1 / np.sqrt(np.maximum(errors, LEAST_ERROR))
        weights = _least_squares(scaled * emphasis[:, None], rest * emphasis, room)
    return np.asarray(least + weights / sizes)


def _least_squares(columns: "Array", wanted: "Array", room: "Array") -> "Array":
    """Return the weights, from 0 to `room`, whose sum of columns is nearest to what is wanted."""
    import numpy as np
    from scipy.optimize import lsq_linear, nnls

    if not np.isfinite(room).any():
        return np.asarray(nnls(columns, wanted)[0])
    return np.asarray(lsq_linear(columns, wanted, bounds=(0, room)).x)


def interval_of(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the interval of measured ÷ estimated that holds `COVERAGE` of new measurements.

    From many ratios it is their quantiles; from few it is Student's prediction interval of their
    logarithms, which is wider the fewer they are.

    Args:
        ratios: measured ÷ estimated of rows that were held out; one or none gives no bound but 0
            and infinity.
    """
    import numpy as np

    tail = (1 - COVERAGE) / 2
    if len(ratios) >= FEW_ROWS:
        low, high = np.quantile(np.asarray(ratios), [tail, 1 - tail])
        return float(low), float(high)
    if len(ratios) < 2:
        return 0.0, math.inf
    from scipy.stats import t as student

    logs = np.log(np.asarray(ratios))
    spread = float(logs.std(ddof=1)) * math.sqrt(1 + 1 / len(logs))
    reach = float(student.ppf(1 - tail, len(logs) - 1)) * spread
    middle = float(logs.mean())
    return math.exp(middle - reach), math.exp(middle + reach)
