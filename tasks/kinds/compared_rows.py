"""The columns of a snapshot by whose values two versions are compared."""

from collections.abc import Sequence

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, nearest
from millrace.models.comparison.slices import MOST_VALUES
from millrace.models.data.snapshots import Snapshot

MOST_COLUMNS = 8
"""Columns that are compared by, if none is named."""


def slice_columns(snapshot: Snapshot, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns whose values are slices.

    Args:
        snapshot: the rows.
        columns: the columns that a user named; None: the target and others with few values.

    Raises:
        InputError: there is no such column, or it is a vector.
    """
    schema = snapshot.schema
    if columns is None:
        few = [
            each.name
            for each in schema.columns
            if each.type in ("category", "bool") and len(each.categories or ()) <= MOST_VALUES
        ]
        return tuple(sorted(few, key=lambda name: name != schema.target)[:MOST_COLUMNS])
    names = [each.name for each in schema.columns if each.type != "vector"]
    for name in columns:
        if name not in names:
            raise InputError(
                f"there is no column {name!r} to compare by",
                valid=", ".join(names),
                hint=nearest(name, names),
            )
    return tuple(columns)


def slice_values(values: Sequence[object]) -> Array:
    """Return the values of a column: float64 with NaN for null, or Python objects, `[rows]`."""
    known = [each for each in values if each is not None]
    if known and all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in known
    ):
        return np.array([np.nan if each is None else each for each in values], dtype=np.float64)
    return np.array([*values, None], dtype=object)[:-1]
