"""The schema of a dataset's table: its columns, their types and their limits, as frozen values.

A `TableSchema` is stored with every snapshot, and the rows of the next ingestion must fit it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from millrace.models.common.errors import list_names
from millrace.models.config.dataset_spec import NULL_VALUES, ColumnType

KEY = "_key"
BUCKET = "_bucket"
RESERVED = (KEY, BUCKET)
MAX_LISTED = 30

Category = str | int | bool
ValueType = Literal["string", "int", "bool"]

_ARROW: dict[str, pa.DataType] = {
    "float": pa.float64(),
    "int": pa.int64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "text": pa.string(),
    "messages": pa.string(),
    "vector": pa.list_(pa.float32()),
}


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        name: name in the source and in the table.
        type: float (float64), int (int64), bool, string, text, messages (canonical JSON),
            category or vector (list of float32).
        min: smallest allowed value (in a vector, smallest allowed element); None for no limit.
        max: largest allowed value (in a vector, largest allowed element); None for no limit.
        nullable: whether null and NaN are accepted; both are stored as null.
        categories: allowed values of a category, sorted. None for other types, and until the
            values are collected from the rows.
        width: length of each vector; None for other types.
        values: type of a category's values.
    """

    name: str
    type: ColumnType
    min: float | None = None
    max: float | None = None
    nullable: bool = False
    categories: tuple[Category, ...] | None = None
    width: int | None = None
    values: ValueType = "string"

    @property
    def arrow(self) -> pa.DataType:
        """Arrow type of the stored column."""
        return _ARROW[self.values if self.type == "category" else self.type]

    @property
    def numeric(self) -> bool:
        """Whether the column holds numbers or vectors of numbers."""
        return self.type in ("float", "int", "vector")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Column":
        """Build from the dictionary that `asdict` gives, after a trip through JSON."""
        categories = values["categories"]
        return cls(**{**values, "categories": None if categories is None else tuple(categories)})


@dataclass(frozen=True)
class TableSchema:
    """The columns of a table and their roles.

    Attributes:
        columns: every column of the table, in order.
        key: columns that identify a row; if empty, a hash of the whole row identifies the row.
        target: column to predict.
        features: columns to learn from, in the order of the model's input.
        null_values: words that are read as null in numbers, booleans and categories.
    """

    columns: tuple[Column, ...]
    key: tuple[str, ...]
    target: str
    features: tuple[str, ...]
    null_values: tuple[str, ...] = NULL_VALUES

    @property
    def arrow(self) -> pa.Schema:
        """Arrow schema of the user's columns."""
        return pa.schema([(column.name, column.arrow) for column in self.columns])

    @property
    def stored(self) -> pa.Schema:
        """Arrow schema of the table: the user's columns, `_key` and `_bucket`."""
        return self.arrow.append(pa.field(KEY, pa.string())).append(pa.field(BUCKET, pa.int32()))

    @property
    def private(self) -> tuple[str, ...]:
        """Columns whose values the log of the table does not name: keys and texts."""
        return (KEY, *self.key, *self.names_of("text"), *self.names_of("messages"))

    def column(self, name: str) -> Column:
        """Return the column `name`; KeyError if there is none."""
        column = self.find(name)
        if column is None:
            raise KeyError(name)
        return column

    def find(self, name: str) -> Column | None:
        """Return the column `name`; None if there is none."""
        return next((column for column in self.columns if column.name == name), None)

    def names_of(self, kind: ColumnType) -> list[str]:
        """Return the names of the columns of a type."""
        return [column.name for column in self.columns if column.type == kind]

    def with_categories(self, values: Mapping[str, tuple[Category, ...]]) -> "TableSchema":
        """Return the schema with the collected categories filled in."""
        columns = (
            replace(column, categories=values[column.name]) if column.name in values else column
            for column in self.columns
        )
        return replace(self, columns=tuple(columns))

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TableSchema":
        """Build from the dictionary that `as_json` gives, before or after a trip through JSON.

        Snapshots of an earlier Millrace have no `null_values`, and may have the words as
        categories.
        """
        columns = tuple(Column.from_json(column) for column in values["columns"])
        categories = {value for column in columns for value in column.categories or ()}
        earlier = () if categories.intersection(NULL_VALUES) else NULL_VALUES
        return cls(
            columns=columns,
            key=tuple(values["key"]),
            target=values["target"],
            features=tuple(values["features"]),
            null_values=tuple(values.get("null_values", earlier)),
        )


def describe_schema(schema: TableSchema) -> str:
    """Return one line with the features, the columns that are only stored, and the target.

    Args:
        schema: schema of a snapshot, with the categories filled in.
    """
    used = {*schema.features, schema.target}
    others = [column.name for column in schema.columns if column.name not in used]
    parts = [
        list_names([_describe_column(schema.column(name)) for name in schema.features], MAX_LISTED),
        f"stored, but not features: {list_names(others, MAX_LISTED)}" if others else "",
        f"target {_describe_column(schema.column(schema.target))}",
    ]
    return "; ".join(part for part in parts if part)


def _describe_column(column: Column) -> str:
    size = len(column.categories or ()) if column.type == "category" else column.width
    return f"{column.name} {column.type}" + (f" of {size}" if size else "")


def describe_changes(old: TableSchema, new: TableSchema) -> str:
    """Return how the columns of two schemas differ, such as `z is new; x is gone`."""
    before = {column.name: column for column in old.columns}
    after = {column.name: column for column in new.columns}
    added = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    other = [name for name in after if name in before and after[name] != before[name]]
    groups = {"new": added, "gone": gone, "of another type or limit": other}
    words = [
        f"{list_names(names, MAX_LISTED)} {'is' if len(names) == 1 else 'are'} {state}"
        for state, names in groups.items()
        if names
    ]
    return "; ".join(words) or "they are in another order, or of another use"
