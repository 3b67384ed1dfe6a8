"""Reads rows by the names of their columns, from tensors or from JSON, and checks them.

`columns.json` in the version's folder has the columns, the words that mean null, and the rules of
`input_rules`, whose words are those of batch inference.
"""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cell_values import CellReader, as_text  # type: ignore[import-not-found]
from input_rules import InputRules, find_fault  # type: ignore[import-not-found]

Array = npt.NDArray[Any]

FILE = "columns.json"
TEXT = "text"
TRUTHS = {"true": True, "false": False, "": None}
MOST_FAULTS = 10
"""Rows that a refusal names."""
MOST_BYTES = 2**20
"""Bytes of a row of JSON."""
MOST_SEEN = 80
"""Characters of a value that a refusal shows."""


class RowsRefused(ValueError):
    """A request has rows that the model cannot answer."""


class NamedRows:
    """The columns of one version.

    Args:
        text: contents of `columns.json`.
    """

    def __init__(self, text: str) -> None:
        values = json.loads(text)
        self.input: str = values["input"]
        self.columns: list[dict[str, Any]] = values["columns"]
        self.names = [column["name"] for column in self.columns]
        self.readers = [CellReader(column, values["null_values"]) for column in self.columns]
        self.rules = InputRules(json.dumps(values["rules"])) if values["rules"] else None
        self.labels: list[str | int | bool] = values["labels"]
        self.output: str = values["output"]
        self.key: list[str] = values["key"]

    def read_json(self, rows: Sequence[bytes]) -> Array:
        """Return rows, each a JSON object of its columns, as the model's input.

        Raises:
            RowsRefused: a row is no object, lacks a column, or has a value that is not allowed.
        """
        long = [number for number, row in enumerate(rows, start=1) if len(row) > MOST_BYTES]
        if long:
            raise RowsRefused(f"row {long[0]} is longer than {MOST_BYTES:,} bytes")
        found = [self._parse(number, row) for number, row in enumerate(rows, start=1)]
        return self._checked([[row[name] for row in found] for name in self.names])

    def read_tensors(self, tensors: Mapping[str, Array]) -> Array:
        """Return columns, each an array `[rows, 1]` or `[rows, width]`, as the model's input.

        Raises:
            RowsRefused: a column is left out, or has a value that is not allowed.
        """
        missing = [name for name in self.names if name not in tensors]
        if missing:
            raise RowsRefused(f"the column {missing[0]!r} is missing; needed: {self._needed()}")
        cells = [cells_of(tensors[c["name"]], c["values"]) for c in self.columns]
        if self.input != TEXT:  # a tensor of texts has no null
            known = [column["categories"] for column in self.columns]
            cells = [
                [None if cell == "" and "" not in categories else cell for cell in column]
                for column, categories in zip(cells, known, strict=True)
            ]
        return self._checked(cells)

    def _parse(self, number: int, row: bytes) -> dict[str, Any]:
        try:
            found = json.loads(row, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RowsRefused(f"row {number} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise RowsRefused(f"row {number} is not an object of columns; seen: {_seen(found)}")
        for name in self.names:
            if name not in found:
                raise RowsRefused(
                    f"row {number} has no column {name!r}; {self._remedy(name, found)}"
                )
        return found

    def _remedy(self, name: str, row: Mapping[str, Any]) -> str:
        column = self.columns[self.names.index(name)]
        unknown = [each for each in row if each not in self.names]
        if close := get_close_matches(name, unknown, 1):
            return f"did you mean {name!r} by {close[0]!r}?"
        return "write null if it is not known" if column["nullable"] else "add it"

    def _needed(self) -> str:
        return ", ".join(self.names)

    def _checked(self, cells: Sequence[Sequence[Any]]) -> Array:
        """Return the columns' cells as the model's input, or refuse the rows with faults."""
        if self.input == TEXT:
            return self._texts(cells[0])
        parts = []
        for column, reader, values in zip(self.columns, self.readers, cells, strict=True):
            read = np.array([reader.read(cell) for cell in values], np.float64)
            parts.append(read.reshape(len(values), column["width"]))
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and is refused
            encoded: Array = np.concatenate(parts, axis=1).astype(np.float32)
        assert self.rules is not None
        bad = np.flatnonzero(~self.rules.check_rows(encoded).all(axis=1))
        if bad.size:
            raise RowsRefused(
                _refusal(
                    len(encoded),
                    [(int(row), *self._fault(encoded[row], cells, int(row))) for row in bad],
                )
            )
        return encoded

    def _fault(self, row: Array, cells: Sequence[Sequence[Any]], number: int) -> tuple[str, Any]:
        """Return the first fault of a row in words, and the cell."""
        assert self.rules is not None
        start = 0
        for position, feature in enumerate(self.rules.features):
            text, _ = find_fault(feature, row[start : start + feature["width"]])
            start += feature["width"]
            if text:
                return f"{feature['name']} {text}", cells[position][number]
        raise AssertionError("the row has no fault")

    def _texts(self, cells: Sequence[Any]) -> Array:
        column = self.columns[0]
        cells = [cell if cell is None else as_text(cell) or cell for cell in cells]
        faults = [
            (row, f"{column['name']} {column['missing' if cell is None else 'unreadable']}", cell)
            for row, cell in enumerate(cells)
            if not isinstance(cell, str)
        ]
        if faults:
            raise RowsRefused(_refusal(len(cells), faults))
        return np.array([cell.encode() for cell in cells], dtype=object).reshape(-1, 1)


def _refusal(rows: int, faults: Sequence[tuple[int, str, Any]]) -> str:
    """Return which rows cannot be answered and why; the row numbers begin with 1."""
    if len(faults) == 1:
        row, fault, cell = faults[0]
        return f"row {row + 1} cannot be answered: {fault}; seen: {_seen(cell)}"
    shown = "; ".join(
        f"row {row + 1}: {fault}, {_seen(cell)}" for row, fault, cell in faults[:MOST_FAULTS]
    )
    more = f"; … {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return f"{len(faults)} of {rows} rows cannot be answered: {shown}{more}"


def _seen(cell: Any) -> str:
    text = json.dumps(cell, ensure_ascii=False, default=str)[:MOST_SEEN]
    return text.encode(errors="backslashreplace").decode()  # half a pair of UTF-16 is no text


def cells_of(array: Array, values: str) -> list[Any]:
    """Return the cells of a tensor: numbers, truths, texts, or lists of numbers.

    Args:
        array: the tensor; truths that may be null are texts.
        values: `bool` for truths.
    """
    rows = array.reshape(len(array), -1)
    if array.dtype == np.object_:
        texts = [_decode(cell) for cell in rows[:, 0]]
        return [TRUTHS.get(text, text) for text in texts] if values == "bool" else texts
    found: list[Any] = rows[:, 0].tolist() if rows.shape[1] == 1 else rows.tolist()
    return found


def _decode(cell: bytes | str) -> str:
    return cell.decode() if isinstance(cell, bytes) else cell


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write null for a missing number")


def load_rows(version: Path) -> NamedRows:
    """Return the columns of a version."""
    return NamedRows((version / FILE).read_text())
