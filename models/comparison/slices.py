"""Compares two versions on parts of the rows: by each value of a column, or in quarters."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.comparison.paired_scores import LEVEL, PairedResult, PairedScores, Verdict

FEW_ROWS = 30
"""Rows below which a slice is too small to be judged."""
MOST_VALUES = 20
"""Values of a column that are slices of their own; the rarer ones are one slice together."""
OTHERS = "(others)"
NULL = "(null)"
QUARTERS = 4


@dataclass(frozen=True)
class SliceResult:
    """Both versions on a part of the rows.

    Attributes:
        column: the column.
        value: its value, in words.
        result: how both compare; its p-value is by itself.
        verdict: the verdict, with the p-values of all slices of all columns taken together.
        is_small: whether it has too few rows to be judged.
    """

    column: str
    value: str
    result: PairedResult
    verdict: Verdict
    is_small: bool


def compare_slices(scores: PairedScores) -> tuple[SliceResult, ...]:
    """Compare both versions on every slice, those with the largest loss first.

    Many slices are tested, so the p-values are corrected by Holm's method (1979): of equal
    versions, any slice is called different with a probability of at most 5%.
    """
    found = [
        (column, value, scores.of(rows).result())
        for column, values in scores.slices.items()
        for value, rows in _slices_of(values)
    ]
    large = [number for number, (_, _, result) in enumerate(found) if result.rows >= FEW_ROWS]
    tested = sorted(large, key=lambda number: found[number][2].p_value)
    differ: dict[int, Verdict] = {}
    for place, number in enumerate(tested):
        result = found[number][2]
        if not result.p_value < LEVEL / (len(tested) - place):
            break
        differ[number] = result.verdict
    results = [
        SliceResult(
            column,
            value,
            result,
            differ.get(number, "no difference shown"),
            result.rows < FEW_ROWS,
        )
        for number, (column, value, result) in enumerate(found)
    ]
    return tuple(sorted(results, key=lambda each: (each.is_small, each.result.difference)))


def _slices_of(values: Array) -> Iterator[tuple[str, Array]]:
    """Yield each slice of a column with its rows, bool `[rows]`.

    Args:
        values: numbers with NaN for null, or texts with None for null, `[rows]`.
    """
    if values.dtype.kind == "f" and len(np.unique(values[~np.isnan(values)])) > MOST_VALUES:
        yield from _quarters(values)
        return
    texts = np.array([_in_words(value) for value in values.tolist()], dtype=object)
    names, counts = np.unique(texts.astype(str), return_counts=True)
    ordered = [str(name) for name in names[np.argsort(-counts, kind="stable")]]
    for name in ordered[:MOST_VALUES]:
        yield name, texts == name
    if ordered[MOST_VALUES:]:
        yield OTHERS, np.isin(texts.astype(str), ordered[MOST_VALUES:])


def _quarters(values: Array) -> Iterator[tuple[str, Array]]:
    known = ~np.isnan(values)
    edges = np.unique(np.quantile(values[known], np.linspace(0, 1, QUARTERS + 1)))
    for low, high in zip(edges[:-1], edges[1:], strict=True):
        below = values <= high if high == edges[-1] else values < high
        yield f"{_number(low)} to {_number(high)}", known & (values >= low) & below
    if not known.all():
        yield NULL, ~known


def _number(value: float) -> str:
    """Return a number with the digits that tell large ones apart."""
    return f"{value:.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _in_words(value: object) -> str:
    if value is None or value != value:  # NaN
        return NULL
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
