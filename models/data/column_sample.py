"""Reads the type of each column from the first rows of a source."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import ColumnType
from millrace.models.data.coerce import INTEGER, cast, mask, plain, words_to_null
from millrace.models.data.messages import is_list_of_structs
from millrace.models.data.schema import Column
from millrace.models.data.sources.source import TEXT

NUMBER_SHARE = 0.9
"""Share of a text column's cells that must be numbers for the column to be read as numbers.

The other cells make their rows bad.
"""

MISSING_WORDS = (
    *("?", "-", "--", ".", "*", "na", "n.a.", "n/a", "#n/a", "nan", "nil", "null", "none"),
    *("missing", "unknown", "undefined", "not available", "not applicable", "no data"),
)
"""Words, in small letters, that often stand for a missing value."""

_DAY = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)? ?(Z|UTC|[+-][0-9]{2}(:?[0-9]{2})?)?"
_DATE = rf"^{_DAY}([T ]{_TIME})?$"


def without_null_values(batch: pa.RecordBatch, null_values: Sequence[str]) -> pa.RecordBatch:
    """Return a batch in which these words are null in every column of text."""
    arrays = [words_to_null(plain(array), null_values) for array in batch.columns]
    fields = [
        field.with_type(array.type) for field, array in zip(batch.schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def sample_column(name: str, sample: Sequence[pa.RecordBatch]) -> pa.Array:
    """Return the sampled cells of a column as one array.

    Text whose type is not known yet is cast if nearly all cells are numbers or all are booleans.
    """
    parts = [batch.column(name) for batch in sample if name in batch.schema.names]
    parts = [plain(part) for part in parts if not pa.types.is_null(part.type)]
    if not parts:
        return pa.nulls(0)
    if is_open_text(name, sample):
        return _read_text(_concatenate(parts, "string"))
    if len({part.type for part in parts}) == 1:
        return pa.concat_arrays(parts)
    types = {seen_type(part) for part in parts} - {None}
    if types <= {"int", "float"}:
        return _concatenate(parts, "float")
    if types == {"vector"}:
        return _concatenate(parts, "vector")
    return _read_text(_concatenate(parts, "string"))


def _fields(name: str, sample: Sequence[pa.RecordBatch]) -> list[pa.Field]:
    return [batch.schema.field(name) for batch in sample if name in batch.schema.names]


def _concatenate(parts: Sequence[pa.Array], type_: ColumnType) -> pa.Array:
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


def is_open_text(name: str, sample: Sequence[pa.RecordBatch]) -> bool:
    """Return whether the source has the column as text, whose type is to be inferred."""
    return any(field.metadata == TEXT for field in _fields(name, sample))


def leading_zero(name: str, sample: Sequence[pa.RecordBatch]) -> str | None:
    """Return a whole number of such a column that begins with a zero; None if there is none."""
    for batch in sample if is_open_text(name, sample) else ():
        if name in batch.schema.names:
            text = plain(batch.column(name))
            found = text.filter(pc.match_substring_regex(text, r"^0[0-9]+$"))
            if len(found):
                return str(found[0])
    return None


def seen_type(array: pa.Array) -> str | None:
    """Return the type of an array: int, float, bool, string, vector, else the name of Arrow's type.

    None if all cells are null. Whole numbers of more than 63 bits are floats.
    """
    kind = array.type
    if array.null_count == len(array):
        return None
    if pa.types.is_uint64(kind) and pc.max(array).as_py() >= 2**63:
        return "float"
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
    """Return the most frequent length of the sampled vectors."""
    if seen_type(array) != "vector":
        raise InputError(
            f"column {name!r} is declared a vector in dataset.columns, but does not hold lists",
            seen=array.type,
            valid="lists",
            hint=f"write lists of numbers into {name!r}, or declare another type for {name!r}",
        )
    lengths = pc.value_counts(pc.list_value_length(array).drop_null())
    counts = dict(zip(lengths.field(0).to_pylist(), lengths.field(1).to_pylist(), strict=True))
    return int(max(counts, key=lambda length: (counts[length], length)))


def find_missing_words(array: pa.Array) -> dict[str, int]:
    """Return the cells of a column of text that look like a missing value, with their number."""
    if not pa.types.is_string(array.type):
        return {}
    words = pc.utf8_lower(pc.utf8_trim_whitespace(array))
    cells = array.filter(pc.is_in(words, pa.array(MISSING_WORDS)))
    return {each["values"]: each["counts"] for each in pc.value_counts(cells).to_pylist()}


def is_date(array: pa.Array) -> bool:
    """Return whether the type is a date or timestamp, or nearly all cells are ISO dates as text."""
    if seen_type(array) is None:
        return False
    if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
        return True
    return pa.types.is_string(array.type) and _mostly_matches(array, _DATE)


def is_bool_text(name: str, sample: Sequence[pa.RecordBatch], array: pa.Array) -> bool:
    """Return whether a column without a fixed type is text, nearly all of it true or false."""
    has_open_type = any(
        field.metadata == TEXT or not pa.types.is_string(plain(pa.nulls(0, field.type)).type)
        for field in _fields(name, sample)
        if not pa.types.is_null(field.type)
    )
    return has_open_type and _mostly_matches(array, r"(?i)^(true|false)$")


def has_chats(name: str, sample: Sequence[pa.RecordBatch]) -> bool:
    """Return whether a batch has lists of objects in the column, as a column of chats has."""
    return any(is_list_of_structs(field.type) for field in _fields(name, sample))


def _mostly_matches(text: pa.Array, pattern: str) -> bool:
    """Return whether nearly all cells of a text column that are not null match a pattern."""
    words = pc.utf8_trim_whitespace(text.drop_null())
    matching = np.count_nonzero(mask(pc.match_substring_regex(words, pattern)))
    return matching > 0 and bool(matching >= NUMBER_SHARE * len(words))
