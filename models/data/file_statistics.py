"""Statistics of a Parquet file, which a Delta table's log has so that readers can skip files."""

import json
from collections.abc import Collection, Iterator
from typing import Any

import pyarrow.parquet as pq

MAX_TEXT = 64
"""Longest text, in characters, that is kept as the end of a column's values."""


def statistics_of(metadata: pq.FileMetaData, private: Collection[str] = ()) -> str:
    """Return the statistics of a Parquet file in Delta's JSON: rows, nulls, and both ends.

    Args:
        metadata: the file's metadata.
        private: columns whose values are left out, such as keys: the table's log keeps the
            statistics for ever, also of rows that were deleted.
    """
    found: dict[str, list[Any]] = {}
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            name = column.path_in_schema
            if "." not in name and name not in private:  # Delta has no statistics of lists
                found.setdefault(name, []).append(column.statistics)
    complete = {name: each for name, each in found.items() if all(each)}
    nulls = {name: sum(s.null_count for s in each) for name, each in complete.items()}
    ends = dict(_ends(complete))
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: low for name, (low, _) in ends.items()},
            "maxValues": {name: high for name, (_, high) in ends.items()},
            "nullCount": nulls,
        }
    )


def _ends(by_column: dict[str, list[Any]]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the name, the smallest and the largest value of each column that has them."""
    for name, groups in by_column.items():
        known = [each for each in groups if each.has_min_max]
        if not known or not all(each.has_min_max or each.num_values == 0 for each in groups):
            continue
        low, high = min(each.min for each in known), max(each.max for each in known)
        is_number = isinstance(low, int | float) and not isinstance(low, bool)
        if is_number or (isinstance(low, str) and max(len(low), len(high)) <= MAX_TEXT):
            yield name, (low, high)
