"""Which bad rows belong to a key: rows in quarantine and dead letters, stored as JSON."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.coerce import cast
from millrace.models.data.erasure import Erasure, only_wanted
from millrace.models.data.schema import KEY, Column
from millrace.models.data.split import joined_keys

ROW, LINE = "row", "line"
"""Column with the JSON of a bad row, and the field of a line that could not be read."""
_WORD = re.compile(r"[\w.-]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

KeyColumns = Mapping[str, Column | None]
"""The columns of which `_key` is made, in order; None for a column whose type is not known."""

Row = Mapping[str, Any]


def by_stored_row(keys: Collection[str], key_columns: KeyColumns) -> Erasure:
    """Return the erasure of quarantined rows that have one of some keys.

    A row's values are cast as an ingestion casts them: the key 7 finds "007" in a column of whole
    numbers. A line that could not be read belongs to a key if the values of the key stand in it as
    words.

    Args:
        keys: values of `_key`.
        key_columns: without any, only a row's place in the source is known, and no row is found.
    """
    wanted = pa.array(sorted(keys), pa.string())
    words = _KeyWords({key: split_key(key, len(key_columns)) for key in sorted(keys)})

    def is_line(row: Row) -> bool:
        return set(row) == {LINE} and LINE not in key_columns

    def match(rows: pa.Table) -> pa.Array:
        stored = _read_all(rows[ROW], key_columns)
        lines = [words.find_in(str(row[LINE])) if is_line(row) else None for row in stored]
        made = [only_wanted(each, wanted) for each in _keys_of(stored, key_columns)]
        return pc.coalesce(*made, pa.array(lines, pa.string()))

    return Erasure((ROW,), match, (ROW,))


def by_dead_letter(keys: Collection[str], key_columns: KeyColumns) -> Erasure:
    """Return the erasure of dead letters that have one of some keys, as `_key` or in the row."""
    named, stored = Erasure.by_value(KEY, keys), by_stored_row(keys, key_columns)
    return Erasure(
        (*named.columns, *stored.columns),
        lambda rows: pc.coalesce(named.match(rows), stored.match(rows)),
        (*named.columns, *stored.columns),
    )


def split_key(key: str, columns: int) -> list[str]:
    """Return the values of the key columns that are joined in a `_key`; only several are joined."""
    if columns < 2:
        return [key]
    parts = re.findall(r"(?:^|\|)((?:\\.|[^\\|])*)", key)
    return [re.sub(r"\\(.)", r"\1", part) for part in parts]


def stored_keys(rows: pa.Array, key_columns: KeyColumns) -> list[pa.Array]:
    """Return the keys of bad rows, which are stored as JSON: as they are cast, and as they are.

    Args:
        rows: the rows, strings; null if a row was not written.
        key_columns: without any no keys are known, so nothing is returned.
    """
    return _keys_of(_read_all(rows, key_columns), key_columns)


def _read_all(rows: pa.Array | pa.ChunkedArray, key_columns: KeyColumns) -> list[Row]:
    return [_read(text or "", key_columns) for text in rows.to_pylist()]


def _read(text: str, key_columns: KeyColumns) -> Row:
    """Return a row from its JSON; a text that is none is a line that could not be read."""
    try:
        row = json.loads(text)
    except ValueError:  # it was cut, because it is long
        return {LINE: _unescaped(text)}
    return row if isinstance(row, Mapping) else {}


def _keys_of(rows: list[Row], key_columns: KeyColumns) -> list[pa.Array]:
    """Return the keys that rows would have: with their values as they are, and cast."""
    if not key_columns:
        return []
    texts = {name: [_text_of(row.get(name)) for row in rows] for name in key_columns}
    written = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    casted = {name: _cast(written[name], column, name) for name, column in key_columns.items()}
    names = tuple(key_columns)
    return [joined_keys(pa.table(columns), names) for columns in (casted, written)]


def _cast(written: pa.Array, column: Column | None, name: str) -> pa.Array:
    """Return texts as an ingestion would write them; as they are if they do not fit the type."""
    values = cast(written, column or Column(name, "int")).values
    return pc.coalesce(values.cast(pa.string()), written)


def _text_of(value: object) -> str | None:
    """Return a value as Arrow writes it as text: 7.0, from a column of numbers, is 7."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        text: str = pa.scalar(value).cast(pa.string()).as_py()
        return text
    return json.dumps(value) if isinstance(value, bool) else str(value)


class _KeyWords:
    """Keys, by a word of each, so that a line is compared with few of many keys."""

    def __init__(self, keys: Mapping[str, list[str]]) -> None:
        self._keys = keys
        self._by_word: dict[str, list[str]] = defaultdict(list)
        for key, parts in keys.items():
            # A value without letters has none; then every line is compared with the key.
            self._by_word[next(iter(_WORD.findall(parts[0])), "")].append(key)

    def find_in(self, line: str) -> str | None:
        """Return the first key whose values all stand in a line."""
        words = {"", *_WORD.findall(line)} & self._by_word.keys()
        near = sorted(key for word in words for key in self._by_word[word])
        return next((key for key in near if self._has(line, key)), None)

    def _has(self, line: str, key: str) -> bool:
        return all(_is_word(part, line) for part in self._keys[key])


def _unescaped(text: str) -> str:
    """Return cut JSON without its escapes: the `n` of a line break is no letter of a word."""
    return re.sub(
        r"\\(?:u([0-9a-fA-F]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]),
        text,
    )


def _is_word(word: str, text: str) -> bool:
    """Return whether a text has a word; an empty one is in no text."""
    if not word or word not in text:
        return False
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w.-])", text) is not None
