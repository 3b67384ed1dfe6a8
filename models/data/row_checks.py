"""Checks rows against the schema: good rows get the columns' types, bad rows a reason.

A row's reason is its first problem in the order of the schema's columns. Reasons contain no values,
so that they can be counted.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.arrays import Indices
from millrace.models.data import messages
from millrace.models.data.coerce import Cast, Mask, cast, mask
from millrace.models.data.schema import Column, TableSchema

BAD = pa.schema([("reason", pa.string()), ("row", pa.string())])
MAX_ROW_TEXT = 20_000

_LARGEST = float(np.finfo(np.float32).max)

_WRONG_TYPE = {
    "float": "not a number",
    "int": "not a whole number",
    "bool": "not true or false",
    "string": "not text",
    "text": "not text",
    "messages": "not a list of messages, {role, content} each",
    "category": "not of the type of the categories",
    "vector": "not a list of numbers",
}


@dataclass(frozen=True)
class Checked:
    """The result of a check.

    Attributes:
        good: rows that pass, with the schema `TableSchema.arrow`.
        bad: rows that fail, with the schema `BAD`: the reason, and the row as read, in JSON.
        places: index of each bad row in the batch, int64, ascending.
    """

    good: pa.RecordBatch
    bad: pa.RecordBatch
    places: Indices


def check(batch: pa.RecordBatch, schema: TableSchema, max_texts: int | None = None) -> Checked:
    """Split a batch, of any column types, into good rows of the schema's types and bad rows.

    Args:
        batch: rows as they were read; a missing column counts as null.
        schema: the schema that the rows must fit.
        max_texts: number of bad rows to write as JSON; further bad rows have only a reason. None to
            write all bad rows as JSON.
    """
    arrays: list[pa.Array] = []
    failed = np.zeros(batch.num_rows, dtype=np.int32)
    reasons: list[str] = [""]
    for column in schema.columns:
        has_column = column.name in batch.schema.names
        cells = batch.column(column.name) if has_column else pa.nulls(batch.num_rows)
        seen = cast(cells, column, schema.null_values)
        for rows, reason in _find_problems(seen, column):
            if rows.any():
                reasons.append(f"{column.name}: {reason}")
                failed[rows & (failed == 0)] = len(reasons) - 1
        arrays.append(_nan_to_null(seen.values))
    good = pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
    if not failed.any():
        return Checked(good, bad_rows([], []), np.empty(0, np.int64))
    bad = np.flatnonzero(failed)
    texts = [as_json(row) for row in rows_of(batch.take(pa.array(bad[:max_texts])))]
    unwritten = [None] * (len(bad) - len(texts))
    return Checked(
        good.filter(pa.array(failed == 0)),
        bad_rows([reasons[code] for code in failed[bad]], [*texts, *unwritten]),
        bad,
    )


def bad_rows(reasons: Sequence[str], rows: Sequence[str | None]) -> pa.RecordBatch:
    """Return bad rows as a batch with the schema `BAD`."""
    arrays = [pa.array(reasons, pa.string()), pa.array(rows, pa.string())]
    return pa.RecordBatch.from_arrays(arrays, schema=BAD)


def as_json(row: object) -> str:
    """Return a row as one line of JSON, cut at `MAX_ROW_TEXT` characters."""
    return json.dumps(row, default=_as_text, ensure_ascii=False)[:MAX_ROW_TEXT]


def _as_text(value: object) -> str:
    """Return a value that JSON does not have as text; bytes as a column of text has them."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return rows as they were read; bytes that are not UTF-8 are replaced."""
    columns = {field.name: _values(batch[field.name]) for field in batch.schema}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(array: pa.Array) -> list[object]:
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        if not pa.types.is_string(array.type):
            return ["text that is not UTF-8"] * len(array)
        cells = array.cast(pa.binary()).to_pylist()
        return [cell and cell.decode(errors="replace") for cell in cells]


def _find_problems(seen: Cast, column: Column) -> Iterator[tuple[Mask, str]]:
    """Yield masks of the rows that fail in one column, each with the reason."""
    yield seen.unparsable, _WRONG_TYPE[column.type]
    if not column.nullable:
        absent = mask(pc.is_null(seen.values, nan_is_null=column.type == "float"))
        yield absent & ~seen.unparsable, "null"
    if column.type == "vector":
        yield from _vector_problems(seen.values, column)
    elif column.type in ("float", "int"):
        numbers = seen.values.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        yield from _number_problems(numbers, column)
    elif column.type == "messages":
        yield from messages.find_problems(seen.values)
    elif column.type == "category" and column.categories is not None:
        known = pa.array(column.categories).cast(seen.values.type)
        yield ~mask(pc.is_in(seen.values, known)) & mask(seen.values.is_valid()), "unknown category"


def _number_problems(
    numbers: npt.NDArray[np.float64], column: Column
) -> Iterator[tuple[Mask, str]]:
    """Yield masks of the float64 numbers that fail, each with the reason; NaN is null."""
    if column.type != "int":
        yield np.abs(numbers) > _LARGEST, "infinite, or too large for a 32-bit float"
    if column.min is not None:
        yield numbers < column.min, f"below the minimum {column.min:g}"
    if column.max is not None:
        yield numbers > column.max, f"above the maximum {column.max:g}"


def _vector_problems(vectors: pa.Array, column: Column) -> Iterator[tuple[Mask, str]]:
    lengths = pc.list_value_length(vectors).fill_null(-1).to_numpy(zero_copy_only=False)
    yield (lengths >= 0) & (lengths != column.width), f"length is not {column.width}"
    elements = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    rows = np.repeat(np.arange(len(vectors)), np.maximum(lengths, 0))
    if not column.nullable:
        yield _rows_with(np.isnan(elements), rows, len(vectors)), "null in a vector"
    for failed, reason in _number_problems(elements, column):
        yield _rows_with(failed, rows, len(vectors)), reason


def _rows_with(elements: Mask, rows: npt.NDArray[np.int64], total: int) -> Mask:
    failed = np.zeros(total, dtype=np.bool_)
    failed[rows[elements]] = True
    return failed


def _nan_to_null(array: pa.Array) -> pa.Array:
    """Turn NaN into null, so that missing numbers have only one representation."""
    if not pa.types.is_floating(array.type):
        return array
    nan = pc.is_nan(array)
    return pc.if_else(nan, None, array) if pc.any(nan).as_py() else array
