import json
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.data.coerce import cast
from millrace.models.data.row_checks import check
from millrace.models.data.schema import Column, TableSchema


def schema(*columns: Column) -> TableSchema:
    return TableSchema(columns, (), columns[-1].name, ())


def reasons(cells: Any, column: Column) -> list[str | None]:
    """The reason for each cell, None for a good one."""
    batch = pa.record_batch({column.name: cells})
    found = []
    for place in range(batch.num_rows):
        bad = check(batch.slice(place, 1), schema(column)).bad
        found.append(bad.column("reason")[0].as_py().partition(": ")[2] if bad.num_rows else None)
    return found


@pytest.mark.parametrize(
    ("column", "cells", "expected"),
    [
        (Column("a", "float"), ["1.5", " 2 ", "+3", "1e3", ".5"], [None] * 5),
        (Column("a", "float"), ["abc", "1,5", "NA", None], ["not a number"] * 2 + ["null"] * 2),
        (
            Column("a", "float"),
            [1.0, float("nan"), float("inf")],
            [None, "null", "infinite, or too large for a 32-bit float"],
        ),
        (Column("a", "float", nullable=True), ["", "nan", "x"], [None, None, "not a number"]),
        (
            Column("a", "float", min=0, max=1),
            [-1.0, 0.0, 1.0, 2.0],
            ["below the minimum 0", None, None, "above the maximum 1"],
        ),
        (Column("a", "int"), ["7", "3.0", "3.5", "x"], [None, None] + ["not a whole number"] * 2),
        (Column("a", "int"), [1.0, 1.5, 1e30], [None] + ["not a whole number"] * 2),
        (Column("a", "bool"), ["true", "No", "maybe"], [None, None, "not true or false"]),
        (Column("a", "bool"), [0, 1, 2], [None, None, "not true or false"]),
        (
            Column("a", "category", categories=("x", "y")),
            ["x", "z", None],
            [None, "unknown category", "null"],
        ),
        (
            Column("a", "category", values="int", categories=(1, 2)),
            ["1", "3", "x"],
            [None, "unknown category", "not of the type of the categories"],
        ),
        (
            Column("a", "vector", width=2, max=9),
            [[1.0, 2.0], [1.0], [1.0, None], [1.0, 10.0], None],
            [None, "length is not 2", "null in a vector", "above the maximum 9", "null"],
        ),
        (Column("a", "vector", width=1), ["x"], ["not a list of numbers"]),
        (Column("a", "float"), [[1.0]], ["not a number"]),
    ],
)
def test_each_cell_is_good_or_has_its_reason(
    column: Column, cells: list[Any], expected: list[str | None]
) -> None:
    assert reasons(cells, column) == expected


def test_good_rows_have_the_held_types_and_bad_ones_are_kept_as_seen() -> None:
    held = schema(Column("a", "float"), Column("t", "category"))
    batch = pa.record_batch({"t": ["x", "y", None], "a": ["1", "two", "three"]})
    checked = check(batch, held)
    assert checked.good.schema == held.arrow
    assert checked.good.to_pylist() == [{"a": 1.0, "t": "x"}]
    assert checked.bad.column("reason").to_pylist() == ["a: not a number"] * 2
    assert json.loads(checked.bad.column("row")[1].as_py()) == {"t": None, "a": "three"}


def test_only_so_many_bad_rows_are_written_down() -> None:
    bad = check(pa.record_batch({"a": ["x", "y"]}), schema(Column("a", "float")), 1).bad
    assert bad.column("row").to_pylist() == ['{"a": "x"}', None]
    assert bad.column("reason").null_count == 0


def test_a_missing_column_is_null() -> None:
    held = schema(Column("a", "float"), Column("b", "float", nullable=True))
    assert check(pa.record_batch({"a": [1.0]}), held).good.to_pylist() == [{"a": 1.0, "b": None}]


def test_nan_is_stored_as_null() -> None:
    held = schema(Column("a", "float", nullable=True))
    good = check(pa.record_batch({"a": [float("nan"), 1.0]}), held).good
    assert good.column("a").to_pylist() == [None, 1.0]


def test_long_integers_keep_every_digit_beside_bad_cells() -> None:
    cells = pa.array(["123456789012345678", "oops"])
    assert cast(cells, Column("a", "int")).values.to_pylist() == [123456789012345678, None]
