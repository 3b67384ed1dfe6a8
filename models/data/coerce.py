"""Casts cells to their column's type; marks a cell that cannot be cast, and raises nothing.

A whole column is cast at once. If Arrow refuses, the column's text is matched against a pattern and
only the matching cells are cast, still vectorised.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.config.dataset_spec import NULL_VALUES, ColumnType
from millrace.models.data import messages
from millrace.models.data.schema import Column

Mask = npt.NDArray[np.bool_]

WITH_NULL_VALUES: tuple[ColumnType, ...] = ("float", "int", "bool", "category")
"""Types of the columns in which words are read as null."""
TRUE_WORDS = ("true", "1", "yes", "t", "y")
FALSE_WORDS = ("false", "0", "no", "f", "n")
DIGITS = r"^[+-]?[0-9]+$"
INTEGER = r"^[+-]?([0-9]{1,18}|[1-8][0-9]{18}|9[01][0-9]{17}|92[01][0-9]{16}|922[0-2][0-9]{15})$"
"""Text that is a whole number and certainly fits 64 bits."""

_NUMBER = r"^([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|Inf|INF|Infinity))$"


@dataclass(frozen=True)
class Cast:
    """A column that was cast to its Arrow type; cells are null where `unparsable` is true."""

    values: pa.Array
    unparsable: Mask


def cast(array: pa.Array, column: Column, null_values: Sequence[str] = NULL_VALUES) -> Cast:
    """Cast `array`, of any Arrow type, to the type of `column`.

    Args:
        array: the cells.
        column: the column.
        null_values: words that are read as null in a text, except where the column's type is text.
    """
    array = plain(array)
    if pa.types.is_null(array.type):
        return _all_parsed(pa.nulls(len(array), column.arrow))
    kind = column.values if column.type == "category" else column.type
    if column.type not in WITH_NULL_VALUES or not pa.types.is_string(array.type):
        return _CASTS[kind](array)
    words = [word for word in null_values if word not in (column.categories or ())]
    if kind == "string" or any(map(_is_number_text, words)):
        array = words_to_null(array, words)
    seen = _CASTS[kind](array)
    if seen.unparsable.any():
        trimmed = pc.utf8_trim_whitespace(array)
        is_word = mask(pc.is_in(trimmed, pa.array(words, pa.string())))
        seen = replace(seen, unparsable=seen.unparsable & ~is_word)
    return seen


def words_to_null(array: pa.Array, null_values: Sequence[str]) -> pa.Array:
    """Return an array in which these words are null; one that is not of text as it is."""
    if not pa.types.is_string(array.type) or not null_values:
        return array
    found = pc.is_in(array, pa.array(null_values, pa.string()))
    return pc.if_else(found, None, array) if pc.any(found).as_py() else array


def _is_number_text(word: str) -> bool:
    """Return whether a word could be taken for a number; NaN is null anyway."""
    try:
        return not math.isnan(float(word))
    except ValueError:
        return False


def plain(array: pa.Array) -> pa.Array:
    """Return `array` with dictionaries decoded, text as `string` and no 16-bit floats."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_large_string(array.type) or pa.types.is_string_view(array.type):
        array = array.cast(pa.string())
    if pa.types.is_float16(array.type):  # Arrow has few functions for it
        array = array.cast(pa.float32())
    return array


def mask(array: pa.Array) -> Mask:
    """Return a boolean Arrow array as NumPy, null as False."""
    filled: Mask = array.fill_null(False).to_numpy(zero_copy_only=False).astype(np.bool_)
    return filled


def _to_float(array: pa.Array) -> Cast:
    if _is_number(array.type) or pa.types.is_boolean(array.type):
        return _all_parsed(array.cast(pa.float64(), safe=False))
    if not pa.types.is_string(array.type):
        return _none_parsed(array, pa.float64())
    try:
        return _all_parsed(array.cast(pa.float64()))
    except pa.ArrowInvalid:
        return _parse(array, _NUMBER, pa.float64())


def _to_int(array: pa.Array) -> Cast:
    kind = array.type
    if pa.types.is_string(kind):
        return _text_to_int(array)
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and not pa.types.is_uint64(kind)):
        return _cast_safely(array, pa.int64())
    return _numbers_to_int(array) if _is_number(kind) else _none_parsed(array, pa.int64())


def _text_to_int(array: pa.Array) -> Cast:
    try:
        return _all_parsed(array.cast(pa.int64()))
    except pa.ArrowInvalid:
        whole = _parse(array, INTEGER, pa.int64())
    # "3.0" is an integer too; a float64 would change the last digits of a long whole number.
    digits = pc.match_substring_regex(pc.utf8_trim_whitespace(array), DIGITS)
    others = pc.if_else(digits, pa.scalar(None, pa.string()), array)
    number = _numbers_to_int(_parse(others, _NUMBER, pa.float64()).values)
    values = pc.coalesce(whole.values, number.values)
    return Cast(values, whole.unparsable & mask(pc.is_null(values)))


def _numbers_to_int(array: pa.Array) -> Cast:
    """Cast numbers to int64; fractions, infinities and too large numbers are unparsable."""
    numbers = array.cast(pa.float64(), safe=False)
    fits = pc.and_(
        pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), float(2**63 - 1024))
    )
    values = pc.if_else(fits, array, None).cast(pa.int64(), safe=False)
    return Cast(values, ~mask(fits) & ~mask(pc.is_null(numbers, nan_is_null=True)))


def _to_bool(array: pa.Array) -> Cast:
    if pa.types.is_boolean(array.type):
        return _all_parsed(array)
    if _is_number(array.type):
        whole = _numbers_to_int(array).values
        true, false = pc.equal(whole, 1), pc.equal(whole, 0)
        absent = pc.is_null(array, nan_is_null=True)
    elif pa.types.is_string(array.type):
        words = pc.utf8_lower(pc.utf8_trim_whitespace(array))
        true = pc.is_in(words, pa.array(TRUE_WORDS))
        false = pc.is_in(words, pa.array(FALSE_WORDS))
        absent = pc.is_null(array)
    else:
        return _none_parsed(array, pa.bool_())
    known = mask(true) | mask(false)
    return Cast(pa.array(mask(true), mask=~known), ~known & ~mask(absent))


def _to_string(array: pa.Array) -> Cast:
    if pa.types.is_nested(array.type):
        return _none_parsed(array, pa.string())
    if not pa.types.is_string(array.type):
        return _cast_safely(array, pa.string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:  # Parquet files of other writers may hold text that is not UTF-8
        cells = [_decode(cell) for cell in array.cast(pa.binary()).to_pylist()]
        return _mark_new_nulls(array, pa.array(cells, pa.string()))
    return _all_parsed(array)


def _decode(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


def _to_messages(array: pa.Array) -> Cast:
    """Cast chats, which are lists of messages or JSON of such lists, to canonical JSON."""
    if not pa.types.is_string(array.type) and not messages.is_list_of_structs(array.type):
        return _none_parsed(array, pa.string())
    cells = [messages.canonical_json(cell) for cell in array]
    return _mark_new_nulls(array, pa.array(cells, pa.string()))


def _to_vector(array: pa.Array) -> Cast:
    kind = array.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        return _none_parsed(array, pa.list_(pa.float32()))
    if not _is_number(kind.value_type) and not pa.types.is_null(kind.value_type):
        return _none_parsed(array, pa.list_(pa.float32()))
    return _all_parsed(array.cast(pa.list_(pa.float32()), safe=False))


def _parse(array: pa.Array, pattern: str, kind: pa.DataType) -> Cast:
    """Cast the text cells that match `pattern`."""
    text = pc.utf8_trim_whitespace(array)
    matched = pc.match_substring_regex(text, pattern)
    digits = pc.replace_substring_regex(pc.if_else(matched, text, None), r"^\+", "")
    return Cast(digits.cast(kind), ~mask(matched) & ~mask(pc.is_null(text)))


def _cast_safely(array: pa.Array, kind: pa.DataType) -> Cast:
    try:
        return _all_parsed(array.cast(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return _none_parsed(array, kind)


def _all_parsed(values: pa.Array) -> Cast:
    return Cast(values, np.zeros(len(values), dtype=np.bool_))


def _none_parsed(array: pa.Array, kind: pa.DataType) -> Cast:
    return Cast(pa.nulls(len(array), kind), mask(array.is_valid()))


def _mark_new_nulls(array: pa.Array, values: pa.Array) -> Cast:
    return Cast(values, mask(array.is_valid()) & mask(values.is_null()))


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


_CASTS: dict[str, Callable[[pa.Array], Cast]] = {
    "float": _to_float,
    "int": _to_int,
    "bool": _to_bool,
    "string": _to_string,
    "text": _to_string,
    "messages": _to_messages,
    "vector": _to_vector,
}
