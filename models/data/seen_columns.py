"""What the first rows of a source show of its columns, before a pipeline file says anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.column_sample import (
    find_missing_words,
    is_date,
    sample_column,
    seen_type,
    without_null_values,
)
from millrace.models.data.infer_schema import is_measured
from millrace.models.data.sample_check import SAMPLE_ROWS
from millrace.models.data.sources.source import Source

MOST_COUNTED, MOST_SHOWN = 1000, 5
"""Different values up to which those of a column are counted, and how many of them are named."""

SeenType = Literal["int", "float", "bool", "text", "date", "vector", "empty", "other"]


@dataclass(frozen=True)
class SeenColumn:
    """A column in the first rows.

    Attributes:
        name: the column.
        type: what its values are; `other` is a type that no model reads, such as nested rows.
        rows: number of rows.
        nulls: number of nulls among them, words such as NA included.
        distinct: number of different values that are not `missing_words`; of vectors and other
            types 0.
        frequent: the most frequent values with their number, of few different ones.
        length: mean number of characters of a text; 0 for other types.
        missing_words: values that look like a missing value, with their number.
        is_measured: whether its whole numbers are measurements, and no classes.
        counts_rows: whether its whole numbers count the rows, each one more than the one before.
    """

    name: str
    type: SeenType
    rows: int
    nulls: int = 0
    distinct: int = 0
    frequent: tuple[tuple[str, int], ...] = ()
    length: float = 0.0
    missing_words: tuple[tuple[str, int], ...] = ()
    is_measured: bool = False
    counts_rows: bool = False

    @property
    def is_unique(self) -> bool:
        """Whether every row has a value of its own."""
        return self.nulls == 0 and self.distinct == self.rows > 1


@dataclass(frozen=True)
class SeenRows:
    """The first rows of a source.

    Attributes:
        columns: the columns, in their order.
        rows: number of rows that were looked at.
        is_whole: whether these are all rows.
    """

    columns: tuple[SeenColumn, ...]
    rows: int
    is_whole: bool

    def find(self, name: str) -> SeenColumn | None:
        """Return a column by its name; None if there is none."""
        return next((each for each in self.columns if each.name == name), None)


def look_at(source: Source, spec: DatasetSpec) -> SeenRows:
    """Look at the first rows of a source.

    Raises:
        InputError: the source cannot be read.
        OSError: a file cannot be read.
    """
    batches: list[pa.RecordBatch] = []
    rows, is_whole = 0, True
    for chunk in source.chunks():
        if rows >= SAMPLE_ROWS:
            is_whole = False
            break
        batches.append(without_null_values(chunk.rows, spec.null_values))
        rows += chunk.rows.num_rows
    names = dict.fromkeys(name for batch in batches for name in batch.schema.names)
    return SeenRows(tuple(_see(name, batches, rows) for name in names), rows, is_whole)


def _see(name: str, batches: Sequence[pa.RecordBatch], rows: int) -> SeenColumn:
    array = sample_column(name, batches)
    nulls = rows - (len(array) - array.null_count)
    type_ = _type_of(array)
    if type_ in ("empty", "other", "vector"):
        return SeenColumn(name, type_, rows, nulls)
    missing = find_missing_words(array)
    counts = pc.value_counts(array.drop_null())
    counted = counts.slice(0, MOST_COUNTED).to_pylist()
    values = [(str(each["values"]), int(each["counts"])) for each in counted]
    values = sorted((each for each in values if each[0] not in missing), key=lambda each: -each[1])
    text, whole = type_ == "text", type_ == "int"
    return SeenColumn(
        name,
        type_,
        rows,
        nulls,
        len(counts) - len(missing),
        tuple(values[:MOST_SHOWN]) if len(counts) <= MOST_COUNTED else (),
        float(pc.mean(pc.utf8_length(array)).as_py() or 0.0) if text else 0.0,
        tuple(missing.items()),
        whole and is_measured(array.drop_null().unique().to_pylist(), rows - nulls),
        whole and nulls == 0 and bool((np.diff(array.to_numpy(zero_copy_only=False)) == 1).all()),
    )


def _type_of(array: pa.Array) -> SeenType:
    seen = seen_type(array)
    if seen is None:
        return "empty"
    if is_date(array):
        return "date"
    named: dict[str, SeenType] = {
        **{"int": "int", "float": "float", "bool": "bool", "string": "text"},
        "vector": "vector",
    }
    found = named.get(seen, "other")
    if found == "vector" and (_is_nested(array) or pc.count_distinct(_lengths(array)).as_py() > 1):
        return "other"
    return found


def _is_nested(array: pa.Array) -> bool:
    kind = array.type.value_type
    return not (pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _lengths(array: pa.Array) -> pa.Array:
    return pc.list_value_length(array).drop_null()
