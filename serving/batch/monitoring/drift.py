"""How far the rows of a batch job are from those a model was trained on, column by column.

The training snapshot's statistics are cut into bins once. Workers count the rows of their batches
in them, the counts are added up, and one number a column is made of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
"""The least share of a bin for PSI, as Evidently's `get_binned_data` sets it where there is none.

PSI is infinite where a share is zero.
"""

OTHER, NULL = "other", "null"

Counts = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Kind = Literal["number", "string", "int", "bool"]


@dataclass(frozen=True)
class Bins:
    """The bins of one column and how many training rows are in each.

    Numbers: below the first edge, between the edges, from the last edge on, null. Categories: one
    for each value, other, null. NaN is null, and so is a cell that is not of the column's type.

    Attributes:
        column: name of the column.
        kind: what the cells are read as: numbers, or values of a category of this type.
        edges: of numbers, ascending; a bin holds its lower edge.
        values: of a category, the most frequent first.
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

        Numbers are cut in tenths, at the histogram's edges nearest to the deciles: only there is it
        known how many rows are on either side, so that the training rows have no drift from
        themselves. Fewer bins are left where several deciles are at one edge.

        Returns:
            None where there is nothing to compare: text, strings, vectors, no rows.
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
        if column.type == "int":  # the same numbers are below the next whole one
            ends = tuple(float(math.ceil(end)) for end in ends)
        return _of_numbers(column.name, ends, histogram.counts, statistics.nulls)

    @property
    def rows(self) -> int:
        """Training rows."""
        return sum(self.counts)

    @property
    def expected(self) -> Shares:
        """Share of the training rows in each bin, float64 `[bins]`."""
        return _shares(np.array(self.counts))

    @property
    def labels(self) -> tuple[str, ...]:
        """What is in each bin, for readers."""
        if self.kind != "number":
            return (*map(str, self.values), OTHER, NULL)
        if not self.edges:
            return ("any", NULL)
        between = zip(self.edges, self.edges[1:], strict=False)
        inner = (f"{_written(low)} to {_written(high)}" for low, high in between)
        return (f"< {_written(self.edges[0])}", *inner, f"≥ {_written(self.edges[-1])}", NULL)

    def counted(self, cells: pa.Array) -> Counts:
        """Return how many of `cells`, of any Arrow type, are in each bin, int64 `[bins]`.

        A cell means what it means to ingestion, also when it comes as text. The counts of several
        batches add up to those of all their rows.
        """
        if self.kind == "number":
            values = cast(cells, Column(self.column, "float")).values
            places = _places(values.to_numpy(zero_copy_only=False), self.edges)
        else:
            column = Column(self.column, "category", values=self.kind)
            found = cast(cells, column)
            known = pc.index_in(found.values, pa.array(self.values, column.arrow))
            places = known.fill_null(len(self.values)).to_numpy(zero_copy_only=False)
            absent = found.values.is_null().to_numpy(zero_copy_only=False)
            places = np.where(absent, len(self.values) + 1, places)
        return np.bincount(places, minlength=len(self.counts)).astype(np.int64)

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Bins":
        """Build from the values of `as_json`, before or after a trip through JSON."""
        lists = {name: tuple(values[name]) for name in ("edges", "values", "counts")}
        return cls(column=values["column"], kind=values["kind"], **lists)


@dataclass(frozen=True)
class Drift:
    """How far the rows of a job are from the training rows in one column.

    Attributes:
        column: its name.
        psi: population stability index, 0 where the shares are the same, without an upper end. By
            a rule of thumb 0.1 is little and 0.25 is much (Siddiqi 2006, "Credit Risk Scorecards").
        jensen_shannon: Jensen-Shannon divergence to base 2, from 0 to 1.
        noise: the PSI to be expected by chance alone of so many rows.
        rows: rows of the job.
    """

    column: str
    psi: float
    jensen_shannon: float
    noise: float
    rows: int

    @property
    def excess(self) -> float:
        """PSI above what is expected by chance; below 0 where there is less."""
        return self.psi - self.noise

    def exceeds(self, limit: float) -> bool:
        """Return whether the PSI is more than `limit` above what is expected by chance."""
        return self.excess > limit


def bins_of_values(column: str, values: pa.Array, *, codes: bool = False) -> Bins:
    """Return the bins of plain values: of predictions, or of lengths in tokens.

    Booleans and strings are categories. Numbers are cut in tenths.

    Args:
        column: what to call them.
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
    """Return how far rows are from the training rows; no drift where there are no rows.

    Args:
        bins: of the column.
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

    It is Jeffreys' divergence (Jeffreys 1946, "An Invariant Form for the Prior Probability in
    Estimation Problems"); as an index see Siddiqi 2006.

    Args:
        expected: shares `[bins]`.
        seen: shares `[bins]`.
        floor: a share that is less counts as this much.
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
        held = shares > 0
        parts += float(np.sum(shares[held] * np.log2(shares[held] / middle[held])))
    return min(max(parts / 2, 0.0), 1.0)


def noise(bins: int, trained: int, rows: int) -> float:
    """Return the PSI to be expected by chance of rows drawn as the training rows were.

    PSI ÷ (1/n + 1/m) is then about χ² with bins − 1 degrees of freedom, whose mean that is
    (Yurdakul 2018, "Statistical Properties of Population Stability Index").

    Args:
        bins: those that hold a row of either; one without adds nothing to PSI.
        trained: training rows, n.
        rows: rows of the job, m.
    """
    return (bins - 1) * (1 / trained + 1 / rows)


def _floor(trained: int, rows: int) -> float:
    """Return the least share for PSI: `EPSILON`, or half a row where there are few of them.

    An empty bin of twenty rows does not say that its share is a ten-thousandth; taken so, chance
    alone gives PSI two to three times its expected noise. Half a row is what an empty cell is
    taken for since Haldane 1956 and Anscombe 1956, on estimating binomial relations.
    """
    return max(EPSILON, 0.5 / min(trained, rows))


def _of_numbers(column: str, ends: Sequence[float], counts: Sequence[int], nulls: int) -> Bins:
    """Return the bins of numbers out of finer ones.

    Args:
        column: its name.
        ends: of the finer bins, one more than there are.
        counts: numbers in each.
        nulls: rows without a number.
    """
    below = np.cumsum(counts)
    if len(counts) == 1:  # of a constant, what is less or more must be told from it
        return Bins(column, "number", (ends[0], ends[1]), (), (0, int(below[-1]), 0, nulls))
    deciles = below[-1] * np.arange(1, TENTHS) / TENTHS
    cuts = np.unique(np.abs(below[:-1, None] - deciles).argmin(axis=0))
    parts = np.diff(below[cuts], prepend=0, append=below[-1])
    edges = tuple(float(ends[cut + 1]) for cut in cuts)
    return Bins(column, "number", edges, (), (*parts.tolist(), nulls))


def _of_values(column: str, kind: Kind, counts: Mapping[Category, int], nulls: int) -> Bins:
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    kept, rest = ranked[:MOST_VALUES], ranked[MOST_VALUES:]
    held = (*(count for _, count in kept), sum(count for _, count in rest), nulls)
    return Bins(column, kind, (), tuple(value for value, _ in kept), held)


def _places(numbers: npt.NDArray[np.float64], edges: Sequence[float]) -> npt.NDArray[np.intp]:
    """Return the bin of each number; the last one, null, where it is NaN."""
    places = np.searchsorted(np.array(edges, dtype=np.float64), numbers, side="right")
    return np.where(np.isnan(numbers), len(edges) + 1, places)


def _shares(counts: Counts) -> Shares:
    return np.asarray(counts / max(int(counts.sum()), 1), dtype=np.float64)


def _written(number: float) -> str:
    return f"{number:,.0f}" if 1e3 <= abs(number) < 1e7 else f"{number:.4g}"
