"""How a model does on labels that came back: its live accuracy, and whether it has fallen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from millrace.models.common.arrays import Array

ALL_DAYS = 0
LEVELS: Mapping[int, float] = {1: 0.0004, 2: 0.0008, 7: 0.0002, ALL_DAYS: 0.0001}
"""For each number of newest days: the probability that they seem worse by chance on one day. Over
the 30 days of a month they add up to 4.5% false alarms at most (Bonferroni). Most of it goes to one
and two days, in which a sudden fall is to be seen."""
NORMAL = NormalDist()


@dataclass(frozen=True)
class Counted:
    """Labelled rows, and how many of them were answered rightly.

    Attributes:
        rows: number of rows with a label.
        hits: number of right answers among them.
    """

    rows: int
    hits: int

    def __add__(self, other: "Counted") -> "Counted":
        """Return both together."""
        return Counted(self.rows + other.rows, self.hits + other.hits)

    @property
    def share(self) -> float:
        """The accuracy; NaN without rows."""
        return self.hits / self.rows if self.rows else math.nan


@dataclass(frozen=True)
class Fall:
    """A fall of the live accuracy that is more than chance.

    Attributes:
        days: number of days, up to the newest, in which it shows; 0: all of them.
        now: the accuracy in these days.
        before: the accuracy before them, or that of the certificate.
        p_value: probability of so large a fall if nothing had changed.
    """

    days: int
    now: float
    before: float
    p_value: float


def find_fall(certified: Counted, days: Sequence[Counted]) -> Fall | None:
    """Return the fall that the newest day shows; None if there is none.

    The newest 1, 2 and 7 days are compared with the test split and all live days before them, and
    all live days with the test split. If it is asked daily for a month, a model that has not
    changed raises an alarm with a probability of less than 5%.

    Args:
        certified: the rows of the test split, and the hits among them.
        days: the live days of one version, the oldest first.
    """
    found = []
    for window, level in LEVELS.items():
        if window > len(days):
            continue
        recent, earlier = days[-window:], days[: len(days) - window] if window else ()
        now = sum(recent, Counted(0, 0))
        before = sum(earlier, certified)
        p_value = _fall_by_chance(before, now)
        if p_value < level:
            found.append(Fall(window, now.share, before.share, p_value))
    return min(found, key=lambda each: each.p_value, default=None)


def _fall_by_chance(before: Counted, now: Counted) -> float:
    """Return the one-sided p-value of Fisher's exact test.

    The normal approximation raises twice the alarms at accuracies near 1.
    """
    from scipy.stats import hypergeom

    if not before.rows or not now.rows or now.share >= before.share:
        return 1.0
    both = before + now
    return float(hypergeom.cdf(now.hits, both.rows, both.hits, now.rows))


def rmse_interval(squared_errors: Array) -> tuple[float | None, float | None]:
    """Return the ends of the 95% interval of an rmse; None of fewer than two rows.

    The mean squared error is taken as normal with the standard error of a mean, and its ends are
    rooted. With few rows, or errors that are mostly one outlier, it is too narrow.

    Args:
        squared_errors: float64 `[rows]`.
    """
    rows = len(squared_errors)
    if rows < 2:
        return None, None
    mean = float(squared_errors.mean())
    half = NORMAL.inv_cdf(0.975) * float(squared_errors.std(ddof=1)) / math.sqrt(rows)
    return math.sqrt(max(mean - half, 0.0)), math.sqrt(mean + half)


def wilson(hits: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Return both ends of a proportion's score interval (Wilson 1927).

    Unlike a bootstrap, it has a width where all or none are hits. Of nothing it is 0 to 1.
    """
    if of == 0:
        return 0.0, 1.0
    z = NORMAL.inv_cdf((1 + level) / 2)
    share, spread = hits / of, z * z / of
    centre = share + spread / 2
    half = z * math.sqrt(share * (1 - share) / of + spread / (4 * of))
    # Exact at both ends, where rounding would leave a difference of 1e-17.
    low = 0.0 if hits == 0 else (centre - half) / (1 + spread)
    return low, 1.0 if hits == of else (centre + half) / (1 + spread)
