"""Statistics of a snapshot's columns, computed while its rows are read and stored in the snapshot.

Statistics of parts of the rows merge exactly, in any order. A histogram's bins are powers of two
wide and start at multiples of their width. So bins merge in pairs when the range grows, and two
histograms always fit a common grid.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.schema import Category, Column, TableSchema

MAX_BINS = 64

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins of one width.

    Attributes:
        exponent: a bin is `2 ** exponent` wide.
        first: the first bin starts at `first * 2 ** exponent`.
        counts: number of values in each bin; at most `MAX_BINS` bins.
    """

    exponent: int
    first: int
    counts: tuple[int, ...]

    @property
    def edges(self) -> tuple[float, ...]:
        """The edges of the bins; there is one more edge than bins."""
        places = range(self.first, self.first + len(self.counts) + 1)
        return tuple(math.ldexp(place, self.exponent) for place in places)

    def merged(self, other: "Histogram") -> "Histogram":
        """Return the histogram of both sets of values, in at most `MAX_BINS` bins."""
        exponent = max(self.exponent, other.exponent)
        while True:
            a, b = self._coarsened(exponent), other._coarsened(exponent)
            first = min(a.first, b.first)
            end = max(a.first + len(a.counts), b.first + len(b.counts))
            if end - first <= MAX_BINS:
                break
            exponent += 1
        counts = [0] * (end - first)
        for part in (a, b):
            for place, count in enumerate(part.counts, part.first - first):
                counts[place] += count
        return Histogram(exponent, first, tuple(counts))

    def _coarsened(self, exponent: int) -> "Histogram":
        shift = exponent - self.exponent
        first = self.first >> shift
        counts = [0] * (((self.first + len(self.counts) - 1) >> shift) - first + 1)
        for place, count in enumerate(self.counts, self.first):
            counts[(place >> shift) - first] += count
        return Histogram(exponent, first, tuple(counts))


@dataclass(frozen=True)
class Numbers:
    """Statistics of a number column, or of all elements of a vector column.

    `squares` is the sum of squared deviations from the mean.
    """

    count: int
    min: float
    max: float
    mean: float
    squares: float
    histogram: Histogram

    @property
    def std(self) -> float:
        """Population standard deviation of the values."""
        return math.sqrt(max(self.squares, 0.0) / self.count)

    def merged(self, other: "Numbers") -> "Numbers":
        """Return the statistics of both sets of values (Chan, Golub and LeVeque, 1979)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        return Numbers(
            count=count,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            mean=self.mean + delta * other.count / count,
            squares=self.squares + other.squares + delta * delta * self.count * other.count / count,
            histogram=self.histogram.merged(other.histogram),
        )


@dataclass(frozen=True)
class ColumnStatistics:
    """Statistics of one column.

    Attributes:
        rows: number of rows.
        nulls: number of rows without a value; in a vector column, number of missing vectors plus
            number of missing elements.
        numbers: statistics of a float, int or vector column with at least one number; else None.
        counts: each value of a category or bool column, with its number of rows; else None.
    """

    rows: int = 0
    nulls: int = 0
    numbers: Numbers | None = None
    counts: tuple[tuple[Category, int], ...] | None = None

    def merged(self, other: "ColumnStatistics") -> "ColumnStatistics":
        """Return the statistics of both sets of rows."""
        numbers = self.numbers or other.numbers
        if self.numbers and other.numbers:
            numbers = self.numbers.merged(other.numbers)
        counts = None
        if self.counts is not None or other.counts is not None:
            added = Counter(dict(self.counts or ())) + Counter(dict(other.counts or ()))
            counts = tuple(sorted(added.items()))
        return ColumnStatistics(self.rows + other.rows, self.nulls + other.nulls, numbers, counts)

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values, with the standard deviation for people who read the JSON."""
        values = asdict(self)
        if self.numbers:
            values["numbers"]["std"] = self.numbers.std
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ColumnStatistics":
        """Build from the dictionary that `as_json` gives, after a trip through JSON."""
        numbers, counts = values["numbers"], values["counts"]
        return cls(
            rows=values["rows"],
            nulls=values["nulls"],
            numbers=None if numbers is None else _numbers_from_json(numbers),
            counts=None if counts is None else tuple((value, count) for value, count in counts),
        )


def statistics_of(batch: pa.RecordBatch, schema: TableSchema) -> dict[str, ColumnStatistics]:
    """Return the statistics of rows that passed the checks, by column.

    Of keys only nulls are counted: the commits of a table keep its statistics for ever.
    """
    keys = set(schema.key) - set(schema.features)
    return {
        column.name: _column_statistics(batch.column(column.name), column, column.name in keys)
        for column in schema.columns
    }


def merge(
    left: Mapping[str, ColumnStatistics], right: Mapping[str, ColumnStatistics]
) -> dict[str, ColumnStatistics]:
    """Merge the statistics of two sets of rows."""
    empty = ColumnStatistics()
    names = dict.fromkeys((*left, *right))
    return {name: left.get(name, empty).merged(right.get(name, empty)) for name in names}


def _column_statistics(array: pa.Array, column: Column, is_key: bool) -> ColumnStatistics:
    rows = len(array)
    if column.type in ("category", "bool"):
        pairs = pc.value_counts(array.drop_null())
        counts = zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)
        return ColumnStatistics(rows, array.null_count, counts=tuple(sorted(counts)))
    if not column.numeric or is_key:
        return ColumnStatistics(rows, array.null_count)
    flat = array.flatten() if column.type == "vector" else array
    values = flat.drop_null() if flat.null_count else flat
    numbers = values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    numbers = numbers[~np.isnan(numbers)] if column.type == "vector" else numbers
    nulls = len(flat) - len(numbers) + (array.null_count if flat is not array else 0)
    return ColumnStatistics(rows, nulls, numbers=_numbers(numbers) if len(numbers) else None)


def _numbers(values: Values) -> Numbers:
    low, high, mean = float(values.min()), float(values.max()), float(values.mean())
    deviation = values - mean
    return Numbers(
        count=len(values),
        min=low,
        max=high,
        mean=mean,
        squares=float(np.dot(deviation, deviation)),
        histogram=_histogram(values, low, high),
    )


def _histogram(values: Values, low: float, high: float) -> Histogram:
    """Return the histogram on the finest grid on which the values fit into `MAX_BINS` bins."""
    # Bins are at least 2^-52 of the largest magnitude wide, so that float64 holds every bin index
    # exactly.
    exponent = math.frexp(max(abs(low), abs(high)))[1] - 52
    if high > low:
        exponent = max(exponent, math.frexp((high - low) / MAX_BINS)[1] - 1)
    while (
        math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= MAX_BINS
    ):
        exponent += 1
    first = math.floor(math.ldexp(low, -exponent))
    places = np.floor(np.ldexp(values, -exponent)).astype(np.int64) - first
    return Histogram(exponent, first, tuple(np.bincount(places).tolist()))


def _numbers_from_json(values: Mapping[str, Any]) -> Numbers:
    histogram = values["histogram"]
    return Numbers(
        **{name: values[name] for name in ("count", "min", "max", "mean", "squares")},
        histogram=Histogram(histogram["exponent"], histogram["first"], tuple(histogram["counts"])),
    )
