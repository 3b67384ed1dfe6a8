"""The drift of each column: how far the rows of a batch job are from the training rows.

The training snapshot's statistics are cut into bins once. Workers count the rows of their batches
in these bins. The drift of a column is computed from the sum of these counts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.coerce import cast
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.schema import Category, Column

TENTHS = 10
MOST_VALUES = 50
EPSILON = 1e-4
"""PSI replaces smaller shares of a bin by this share, because PSI is infinite for a share of 0. The
value is that of Evidently's `get_binned_data`.
"""

OTHER, NULL = "other", "null"

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Kind = Literal["number", "string", "int", "bool"]


@dataclass(frozen=True)
class Bins:
    """The bins of one column, and the number of training rows in each.

    Numbers have a bin below the first edge, bins between the edges, a bin from the last edge
    upwards, and a bin for null. Categories have a bin for each value, a bin for other values, and a
    bin for null. NaN counts as null, and so does a cell that is not of the column's type.

    Attributes:
        column: name of the column.
        kind: how cells are read: as numbers, or as values of a category of this type.
        edges: the edges between the bins of numbers, ascending; a bin includes its lower edge.
        values: the values of a category, the most frequent first.
        counts: training rows in each bin.
    """

    column: str
    kind: Kind
    edges: tuple[float, ...]
    values: tuple[Category, ...]
    counts: tuple[int, ...]

    @classmethod
    def of(cls, column: Column, statistics: ColumnStatistics) -> "Bins | None":
        """Return the bins of a column of the training snapshot.

        Numbers are cut into tenths, at the histogram's edges nearest to the deciles. The number of
        rows on either side of an edge is known exactly, so the training rows have no drift from
        themselves. There are fewer bins if several deciles are nearest to one edge.

        Returns:
            None if there is nothing to compare: a column of text, strings or vectors, or no rows.
        """
        if not statistics.rows:
            return None
        if column.type in ("category", "bool"):
            kind: Kind = "bool" if column.type == "bool" else column.values
            return _of_values(column.name, kind, dict(statistics.counts or ()), statistics.nulls)
        if column.type not in ("float", "int"):
            return None
        if statistics.numbers is None:
            return cls(column.name, "number", (), (), (0, statistics.nulls))
        histogram = statistics.numbers.histogram
        ends = histogram.edges
        if column.type == "int":  # no integer lies between an edge and the next whole number
            ends = tuple(float(math.ceil(end)) for end in ends)
        return _of_numbers(column.name, ends, histogram.counts, statistics.nulls)

    @property
    def rows(self) -> int:
        """Number of training rows."""
        return sum(self.counts)

    @property
    def expected(self) -> Shares:
        """Share of the training rows in each bin, float64 `[bins]`."""
        return _shares(np.array(self.counts))

    @property
    def labels(self) -> tuple[str, ...]:
        """The label of each bin, such as `< 3`, a value of the category, or `null`."""
        if self.kind != "number":
            return (*map(str, self.values), OTHER, NULL)
        if not self.edges:
            return ("any", NULL)
        between = zip(self.edges, self.edges[1:], strict=False)
        inner = (f"{_format(low)} to {_format(high)}" for low, high in between)
        return (f"< {_format(self.edges[0])}", *inner, f"≥ {_format(self.edges[-1])}", NULL)

    def count(self, cells: pa.Array) -> Counts:
        """Return the number of `cells`, of any Arrow type, in each bin, int64 `[bins]`.

        Cells are read as in ingestion, also if they come as text. The counts of several batches add
        up to those of all their rows.
        """
        if self.kind == "number":
            numbers = cast(cells, Column(self.column, "float")).values
            numbers = numbers.to_numpy(zero_copy_only=False)
            bins = np.searchsorted(np.array(self.edges, np.float64), numbers, side="right")
            bins = np.where(np.isnan(numbers), len(self.edges) + 1, bins)
        else:
            column = Column(self.column, "category", values=self.kind)
            values = cast(cells, column).values
            known = pc.index_in(values, pa.array(self.values, column.arrow))
            bins = known.fill_null(len(self.values)).to_numpy(zero_copy_only=False)
            absent = values.is_null().to_numpy(zero_copy_only=False)
            bins = np.where(absent, len(self.values) + 1, bins)
        return np.bincount(bins, minlength=len(self.counts)).astype(np.int64)


@dataclass(frozen=True)
class Drift:
    """How far the rows of a job are from the training rows in one column.

    Attributes:
        column: its name.
        psi: population stability index: 0 if the shares are equal, without an upper bound. By a
            rule of thumb 0.1 is little and 0.25 is much (Siddiqi 2006, "Credit Risk Scorecards").
        jensen_shannon: Jensen-Shannon divergence to base 2, from 0 to 1.
        noise: the PSI that is expected by chance alone for this number of rows.
        rows: rows of the job.
    """

    column: str
    psi: float
    jensen_shannon: float
    noise: float
    rows: int

    @property
    def excess(self) -> float:
        """The PSI minus `noise`, the PSI that is expected by chance."""
        return self.psi - self.noise

    def exceeds(self, limit: float) -> bool:
        """Return whether the PSI is more than `limit` above what is expected by chance."""
        return self.excess > limit


def bins_of_values(column: str, values: pa.Array, *, codes: bool = False) -> Bins:
    """Return the bins of plain values: of predictions, or of lengths in tokens.

    Booleans and strings are categories. Numbers are cut in tenths.

    Args:
        column: name of the column.
        values: numbers, strings or booleans; null and NaN are allowed.
        codes: whether whole numbers are the codes of classes, and so categories.
    """
    if pa.types.is_floating(values.type) or (pa.types.is_integer(values.type) and not codes):
        numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
        starts, counts = np.unique(numbers[~np.isnan(numbers)], return_counts=True)
        nulls = len(values) - int(counts.sum())
        if not len(starts):
            return Bins(column, "number", (), (), (0, nulls))
        ends = (*starts.tolist(), float(np.nextafter(starts[-1], np.inf)))
        return _of_numbers(column, ends, counts.tolist(), nulls)
    whole, truth = pa.types.is_integer(values.type), pa.types.is_boolean(values.type)
    kind: Kind = "bool" if truth else "int" if whole else "string"
    return _of_values(column, kind, Counter(values.drop_null().to_pylist()), values.null_count)


def drift_of(bins: Bins, counts: Counts) -> Drift:
    """Return how far a job's rows are from the training rows; 0 if the job has no rows.

    Args:
        bins: the bins of the column.
        counts: the job's rows in each bin, int `[bins]`, added up over its batches.
    """
    seen, rows = _shares(counts), int(counts.sum())
    if not rows:
        return Drift(bins.column, 0.0, 0.0, 0.0, 0)
    return Drift(
        column=bins.column,
        psi=psi(bins.expected, seen, _floor(bins.rows, rows)),
        jensen_shannon=jensen_shannon(bins.expected, seen),
        noise=noise(np.count_nonzero(bins.expected + seen), bins.rows, rows),
        rows=rows,
    )


def psi(expected: Shares, seen: Shares, floor: float = EPSILON) -> float:
    """Return the population stability index, Σ (seen − expected) · ln(seen ÷ expected).

    It is Jeffreys' divergence (Jeffreys 1946, "An Invariant Variant for the Prior Probability in
    Estimation Problems"); as an index see Siddiqi 2006.

    Args:
        expected: shares `[bins]`.
        seen: shares `[bins]`.
        floor: smaller shares count as this share.
    """
    left, right = np.maximum(expected, floor), np.maximum(seen, floor)
    return float(np.sum((right - left) * np.log(right / left)))


def jensen_shannon(expected: Shares, seen: Shares) -> float:
    """Return the Jensen-Shannon divergence of shares `[bins]` to base 2, from 0 to 1.

    Lin 1991, "Divergence Measures Based on the Shannon Entropy". Empty bins need no floor.
    """
    middle = (expected + seen) / 2
    parts = 0.0
    for shares in (expected, seen):
        filled = shares > 0
        parts += float(np.sum(shares[filled] * np.log2(shares[filled] / middle[filled])))
    return min(max(parts / 2, 0.0), 1.0)


def noise(bins: int, trained: int, rows: int) -> float:
    """Return the expected PSI of rows drawn from the distribution of the training rows.

    PSI ÷ (1/n + 1/m) is then approximately χ² with bins − 1 degrees of freedom, and mean bins − 1
    (Yurdakul 2018, "Statistical Properties of Population Stability Index").

    Args:
        bins: number of bins with a training row or a job's row; an empty bin adds nothing to PSI.
        trained: training rows, n.
        rows: rows of the job, m.
    """
    return (bins - 1) * (1 / trained + 1 / rows)


def _floor(trained: int, rows: int) -> float:
    """Return the smallest share for PSI: `EPSILON`, or half a row's share if rows are few.

    If a bin is empty in a sample of twenty rows, its true share may be far above a ten-thousandth.
    With `EPSILON`, PSI would be two to three times its expected noise by chance alone. Counting
    half a row for an empty cell goes back to Haldane 1956 and Anscombe 1956, on estimating binomial
    relations.
    """
    return max(EPSILON, 0.5 / min(trained, rows))


def _of_numbers(column: str, ends: Sequence[float], counts: Sequence[int], nulls: int) -> Bins:
    """Return the bins of numbers, merged from finer ones.

    Args:
        column: name of the column.
        ends: edges of the finer bins, one more than there are bins.
        counts: numbers in each finer bin.
        nulls: rows without a number.
    """
    below = np.cumsum(counts)
    if len(counts) == 1:  # a constant has bins below it, at it and above it
        return Bins(column, "number", (ends[0], ends[1]), (), (0, int(below[-1]), 0, nulls))
    deciles = below[-1] * np.arange(1, TENTHS) / TENTHS
    cuts = np.unique(np.abs(below[:-1, None] - deciles).argmin(axis=0))
    parts = np.diff(below[cuts], prepend=0, append=below[-1])
    edges = tuple(float(ends[cut + 1]) for cut in cuts)
    return Bins(column, "number", edges, (), (*parts.tolist(), nulls))


def _of_values(column: str, kind: Kind, counts: Mapping[Category, int], nulls: int) -> Bins:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    kept, rest = ranked[:MOST_VALUES], ranked[MOST_VALUES:]
    in_bins = (*(count for _, count in kept), sum(count for _, count in rest), nulls)
    return Bins(column, kind, (), tuple(value for value, _ in kept), in_bins)


def _shares(counts: Counts) -> Shares:
    return np.asarray(counts / max(int(counts.sum()), 1), dtype=np.float64)


def _format(number: float) -> str:
    return f"{number:,.0f}" if 1e3 <= abs(number) < 1e7 else f"{number:.4g}"
