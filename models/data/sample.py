"""The first rows of a source, column by column, and which type they show."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import ColumnType
from millrace.models.data.coerce import INTEGER, cast, mask, plain
from millrace.models.data.schema import Column
from millrace.models.data.sources.source import TEXT

NUMBER_SHARE = 0.9
"""Share of a text column's cells that must be numbers for it to be one; the rest is bad rows."""


def sampled(name: str, sample: Sequence[pa.RecordBatch]) -> pa.Array:
    """Return the column's cells as one array; of mixed types as text to be found out."""
    parts = [batch.column(name) for batch in sample if name in batch.schema.names]
    parts = [plain(part) for part in parts if not pa.types.is_null(part.type)]
    if not parts:
        return pa.nulls(0)
    text = any(
        name in batch.schema.names and batch.schema.field(name).metadata == TEXT for batch in sample
    )
    if text:
        return _read_text(_concatenated(parts, "string"))
    if len({part.type for part in parts}) == 1:
        return pa.concat_arrays(parts)
    types = {seen_type(part) for part in parts} - {None}
    if types <= {"int", "float"}:
        return _concatenated(parts, "float")
    if types == {"vector"}:
        return _concatenated(parts, "vector")
    return _read_text(_concatenated(parts, "string"))


def _concatenated(parts: Sequence[pa.Array], type_: ColumnType) -> pa.Array:
    """Join arrays of different types; a cell that cannot be cast becomes null."""
    return pa.concat_arrays([cast(part, Column("", type_)).values for part in parts])


def _read_text(text: pa.Array) -> pa.Array:
    """Return text as the narrowest type that nearly all of its cells can be read as."""
    number = cast(text, Column("", "float"))
    read = len(text) - int(number.values.null_count)
    if read and read >= NUMBER_SHARE * (read + np.count_nonzero(number.unparsable)):
        whole = mask(pc.match_substring_regex(text, INTEGER))
        if np.count_nonzero(whole) == read:
            return cast(text, Column("", "int")).values
        return number.values
    words = pc.utf8_lower(text.drop_null())
    if len(words) and pc.all(pc.is_in(words, pa.array(["true", "false"]))).as_py():
        return cast(text, Column("", "bool")).values
    return text


def seen_type(array: pa.Array) -> str | None:
    """Return int, float, bool, string or vector, else Arrow's name; None without a value."""
    kind = array.type
    if array.null_count == len(array):
        return None
    tests = {
        "bool": pa.types.is_boolean(kind),
        "int": pa.types.is_integer(kind),
        "float": pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        "string": pa.types.is_string(kind),
        "vector": pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind),
    }
    return next((name for name, holds in tests.items() if holds), str(kind))


def vector_width(name: str, array: pa.Array) -> int:
    """Return the commonest length of the sampled vectors."""
    if seen_type(array) != "vector":
        raise InputError(f"column {name!r} is declared a vector", seen=array.type, valid="lists")
    lengths = pc.value_counts(pc.list_value_length(array).drop_null())
    counts = dict(zip(lengths.field(0).to_pylist(), lengths.field(1).to_pylist(), strict=True))
    return int(max(counts, key=lambda length: (counts[length], length)))
