"""Statistics of a Parquet file, which a Delta table's log has so that readers can skip files.

A reader may take a column without ends, beside columns with ends, as one that no value fits
(deltalake's `to_pyarrow_dataset` does). So either every column has ends, wide ones where the right
ones are long or private, or none has. Lists and structs, for which Delta has no ends, do not count.
"""

import json
import math
from collections.abc import Collection, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MAX_TEXT = 64
"""Longest text, in characters, that is kept as the end of a column's values."""
LAST_CHARACTER = "\U0010ffff"
"""No text begins with a later character."""

Ends = tuple[Any, Any]


def statistics_of(metadata: pq.FileMetaData, private: Collection[str] = ()) -> str:
    """Return the statistics of a Parquet file in Delta's JSON: rows, nulls, and both ends.

    Args:
        metadata: the file's metadata.
        private: columns whose values are left out, such as keys: the table's log keeps the
            statistics for ever, also of rows that were erased.
    """
    rows = {"numRecords": metadata.num_rows}
    by_column = _read_columns(metadata)
    if by_column is None:
        return json.dumps(rows)
    schema = metadata.schema.to_arrow_schema()
    nulls = {name: sum(each.null_count for each in found) for name, found in by_column.items()}
    ends: dict[str, Ends] = {}
    for name, found in by_column.items():
        if nulls[name] == metadata.num_rows:
            continue  # readers see by the number of nulls that the column has no values
        of_column = _ends_of(schema.field(name).type, found, is_private=name in private)
        if of_column is None:
            return json.dumps(rows)
        ends[name] = of_column
    return json.dumps(
        {
            **rows,
            "minValues": {name: low for name, (low, _) in ends.items()},
            "maxValues": {name: high for name, (_, high) in ends.items()},
            "nullCount": nulls,
        }
    )


def _read_columns(metadata: pq.FileMetaData) -> dict[str, list[Any]] | None:
    """Return the statistics of each row group by column; None if one is missing.

    Lists and structs are left out. The path of a part of them has more than its name; a dot in a
    path may as well belong to the name of a column.
    """
    found: dict[str, list[Any]] = {}
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            if metadata.schema.column(place).name != column.path_in_schema:
                continue
            if column.statistics is None or not column.statistics.has_null_count:
                return None
            found.setdefault(column.path_in_schema, []).append(column.statistics)
    return found


def _ends_of(kind: pa.DataType, found: Iterable[Any], *, is_private: bool) -> Ends | None:
    """Return values that no value of a column is below or above; None if none can be given."""
    known = [each for each in found if each.has_min_max]
    widest = _widest(kind)
    if widest is None or not known:
        return widest
    low, high = min(each.min for each in known), max(each.max for each in known)
    if isinstance(low, float) and not (math.isfinite(low) and math.isfinite(high)):
        return None  # JSON has no infinity
    if is_private:
        return widest
    if not isinstance(low, str):
        return low, high
    # A text that is cut is before the whole text.
    return low[:MAX_TEXT], high if len(high) <= MAX_TEXT else high[:MAX_TEXT] + LAST_CHARACTER


def _widest(kind: pa.DataType) -> Ends | None:
    """Return the ends of all values of a type; None for a type that Delta's JSON has no form of."""
    if pa.types.is_boolean(kind):
        return False, True
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "", LAST_CHARACTER
    if pa.types.is_signed_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return -most, most - 1
    if pa.types.is_float32(kind):
        return -3.4028234663852886e38, 3.4028234663852886e38
    if pa.types.is_float64(kind):
        return -1.7976931348623157e308, 1.7976931348623157e308
    return None
