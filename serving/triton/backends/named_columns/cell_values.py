"""Reads one cell of a column, as JSON or a tensor has it, as the number that the model reads.

The rules are those of `millrace.models.inference.features.Encoding`, which batch inference and
ingestion use: NaN is a null, and infinity is a cell that cannot be read or an unknown category. A
test compares both on random cells.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

NAN, UNREADABLE = math.nan, math.inf
NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|Inf|INF|Infinity|nan|NaN)"
)
WHOLE = re.compile(r"[+-]?[0-9]+")
HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,16}")
"""Arrow reads it as a whole number, without spaces beside it."""
LARGEST_INT = 2**63
TRUE_WORDS = ("true", "1", "yes", "t", "y")
FALSE_WORDS = ("false", "0", "no", "f", "n")


class CellReader:
    """Reads the cells of one column.

    Args:
        column: the column in `columns.json`: `kind`, `width`, `values` and `categories`.
        null_values: words that are read as null, except a category that is one of them.
    """

    def __init__(self, column: Mapping[str, Any], null_values: Sequence[str]) -> None:
        self.kind, self.width = column["kind"], column["width"]
        categories = column["categories"]
        if self.kind == "number" and column["values"] == "bool":
            self.kind, categories = "category", (False, True)
        self.codes = {category: float(code) for code, category in enumerate(categories)}
        self.type = type(categories[0]) if categories else float
        words = [word for word in null_values if word not in categories]
        self.null_values = frozenset(words)
        self.words_first = self.type is str or any(map(_is_number_text, words))

    def read(self, cell: Any) -> float | list[float]:
        """Return the number of a cell; the numbers of a vector."""
        if self.kind == "vector":
            return self._vector(cell)
        if cell is None:
            return NAN
        return self._category(cell) if self.kind == "category" else self._number(cell)

    def _number(self, cell: Any) -> float:
        if isinstance(cell, str):
            text = cell.strip()
            if cell in self.null_values:
                return NAN
            if NUMBER.fullmatch(text):
                return float(text)
            return NAN if text in self.null_values else UNREADABLE
        return _float(cell) if isinstance(cell, int | float) else UNREADABLE

    def _category(self, cell: Any) -> float:
        is_text = isinstance(cell, str)
        if is_text and self.words_first and cell in self.null_values:
            return NAN
        value = _CATEGORY[self.type](cell)
        if value is None and is_text and cell.strip() in self.null_values:
            return NAN
        return self.codes.get(value, UNREADABLE)

    def _vector(self, cell: Any) -> list[float]:
        if cell is None:
            return [NAN] * self.width
        is_list = isinstance(cell, list) and len(cell) == self.width
        if not is_list or not all(each is None or _is_number(each) for each in cell):
            return [UNREADABLE] * self.width
        return [NAN if each is None else _float(each) for each in cell]


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:  # a whole number of more than 300 digits
        return UNREADABLE


def _is_number_text(word: str) -> bool:
    try:
        return not math.isnan(float(word))
    except ValueError:
        return False


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def as_text(cell: Any) -> str | None:
    """Return a cell as text: true as `true`, 3.0 as `3`; None for a list or an object."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, int):
        return str(cell)
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e10 else repr(cell)
    return None


def _as_int(cell: Any) -> int | None:
    """Return a cell as a whole number; None for a fraction, another text, a list or an object."""
    if isinstance(cell, str):
        text = cell.strip()
        if HEXADECIMAL.fullmatch(cell):
            cell = int(cell, 16)
        elif WHOLE.fullmatch(text):
            cell = int(text) if len(text) < 32 else math.inf
        else:
            cell = float(text) if NUMBER.fullmatch(text) else math.nan
    if not isinstance(cell, int | float) or not math.isfinite(cell) or cell != math.floor(cell):
        return None
    return int(cell) if abs(cell) < LARGEST_INT else None


def _as_bool(cell: Any) -> bool | None:
    if isinstance(cell, str):
        word = cell.strip().lower()
        return True if word in TRUE_WORDS else False if word in FALSE_WORDS else None
    return bool(cell) if isinstance(cell, int | float) and cell in (0, 1) else None


_CATEGORY = {str: as_text, int: _as_int, bool: _as_bool}
