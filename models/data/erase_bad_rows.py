"""Which bad rows belong to a key: rows in quarantine and dead letters, stored as JSON."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.erase_rows import Erasure
from millrace.models.data.schema import KEY
from millrace.models.data.split import joined_keys

ROW, LINE = "row", "line"
"""Column with the JSON of a bad row, and the field of a line that could not be read."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def by_stored_row(keys: Collection[str], key_columns: tuple[str, ...]) -> Erasure:
    """Return the erasure of quarantined rows that have one of some keys.

    A line that could not be read belongs to a key if the values of the key stand in it as words.

    Args:
        keys: values of `_key`.
        key_columns: columns of which `_key` is made; without any, only a row's place in the source
            is known, and no row is found.
    """
    wanted = frozenset(keys)
    # Only a key of several columns is joined, with escapes.
    parts = [[key] if len(key_columns) == 1 else split_key(key) for key in sorted(wanted)]

    def find(rows: pa.Table) -> pa.BooleanArray:
        return pa.array([_has_key(text, wanted, parts, key_columns) for text in _texts(rows)])

    return Erasure((ROW,), find)


def by_dead_letter(keys: Collection[str], key_columns: tuple[str, ...]) -> Erasure:
    """Return the erasure of dead letters that have one of some keys, as `_key` or in the row."""
    named, stored = Erasure.by_value(KEY, keys), by_stored_row(keys, key_columns)
    return Erasure(
        (*named.columns, *stored.columns),
        lambda rows: pc.or_(named.find(rows), stored.find(rows)),
        (*named.columns, *stored.columns),
    )


def split_key(key: str) -> list[str]:
    """Return the values of the key columns that are joined in a `_key`."""
    parts = re.findall(r"(?:^|\|)((?:\\.|[^\\|])*)", key)
    return [re.sub(r"\\(.)", r"\1", part) for part in parts]


def _texts(rows: pa.Table) -> Iterable[str]:
    return (text or "" for text in rows[ROW].to_pylist())


def _has_key(
    text: str, wanted: frozenset[str], parts: list[list[str]], key_columns: tuple[str, ...]
) -> bool:
    try:
        row = json.loads(text)
    except ValueError:  # it was cut, because it is long
        row = {LINE: _unescaped(text)}
    if not isinstance(row, Mapping):
        return False
    if set(row) == {LINE} and LINE not in key_columns:
        return any(all(_is_word(part, str(row[LINE])) for part in each) for each in parts)
    return bool(key_columns) and _key_of(row, key_columns) in wanted


def _key_of(row: Mapping[str, Any], key_columns: tuple[str, ...]) -> str | None:
    """Return the `_key` that a row would have; None if a key column is missing."""
    values = [row.get(name) for name in key_columns]
    if any(value is None for value in values):
        return None
    texts = {
        name: [json.dumps(value) if isinstance(value, bool) else str(value)]
        for name, value in zip(key_columns, values, strict=True)
    }
    key: str = joined_keys(pa.table(texts), key_columns)[0].as_py()
    return key


def _unescaped(text: str) -> str:
    """Return cut JSON without its escapes: the `n` of a line break is no letter of a word."""
    return re.sub(
        r"\\(?:u([0-9a-fA-F]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]),
        text,
    )


def _is_word(word: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text) is not None
