"""Refuses columns with too many different values to be categories."""

from collections.abc import Mapping, Sequence

from millrace.models.common.errors import InputError, list_names
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.infer_schema import MAX_CATEGORIES
from millrace.models.data.schema import TableSchema

SHOWN = 5
"""Values of a column that the error shows."""


def require_few_categories(schema: TableSchema, statistics: Mapping[str, ColumnStatistics]) -> None:
    """Check that no category column has more values than there may be categories.

    Raises:
        InputError: columns have too many values; all of them are named.
    """
    values = {
        column.name: [str(value) for value, _ in statistics[column.name].counts or ()]
        for column in schema.columns
        if column.type == "category" and column.name in statistics
    }
    many = {name: seen for name, seen in values.items() if len(seen) > MAX_CATEGORIES}
    if not many:
        return
    names = list(many)
    subject = f"column {names[0]!r} has" if len(names) == 1 else f"columns {list_names(names)} have"
    shown = {name: ", ".join(seen[:SHOWN]) + ", …" for name, seen in many.items()}
    raise InputError(
        f"{subject} more than {MAX_CATEGORIES} different values",
        seen=shown[names[0]]
        if len(names) == 1
        else "; ".join(f"{name}: {text}" for name, text in shown.items()),
        valid=f"a category with at most {MAX_CATEGORIES} values",
        hint="; ".join(_hints(schema, names)),
    )


def _hints(schema: TableSchema, names: Sequence[str]) -> list[str]:
    """Return what to do about columns with too many values."""
    hints = []
    if schema.target in names:
        hints.append(f"to predict the number {schema.target}, set dataset.task: regression")
    others = [name for name in names if name != schema.target]
    if others and not schema.key:
        hints.append(f"if {others[0]} identifies a row, set dataset.key: [{others[0]}]")
    if others:
        declared = ", ".join(f"{name}: {{type: string}}" for name in others)
        hints.append(
            f"dataset.columns: {{{declared}}} stores text without learning from it, and "
            "{type: text} is for model.family: text_classifier"
        )
    return hints
