from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import ColumnSpec, DatasetSpec
from millrace.models.data.infer_schema import resolve_schema
from millrace.models.data.schema import Column, TableSchema, describe_schema
from millrace.models.data.sources.source import as_text


def resolve(cells: dict[str, Any], stored: TableSchema | None = None, **more: Any) -> TableSchema:
    batch = pa.record_batch(cells)
    if more.pop("text", False):
        batch = as_text(batch)
    spec = DatasetSpec(source="s", target=more.pop("target", "t"), **more)
    return resolve_schema(spec, batch.schema.names, [batch], stored)


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["1", "2", None], Column("a", "int")),
        (["1", "2.5", "NA"], Column("a", "float")),
        (["1.5"] * 19 + ["bad"], Column("a", "float")),
        (["1"] * 19 + ["1.5"], Column("a", "float")),
        (["1.0", "2.0"], Column("a", "float")),
        (["x", "2", "y"], Column("a", "category", values="string")),
        (["true", "False"], Column("a", "bool")),
        (["true", "False"] * 9 + ["NA", "tru"], Column("a", "bool")),
        (["true", "False", "maybe"], Column("a", "category", values="string")),
    ],
)
def test_text_is_held_to_the_narrowest_type(cells: list[str], column: Column) -> None:
    schema = resolve({"a": cells, "t": ["0"] * len(cells)}, text=True)
    assert schema.column("a") == column


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ([1, 2], Column("a", "int")),
        ([1.0, None], Column("a", "float")),
        (["1", "2"], Column("a", "category", values="string")),
        ([True, False], Column("a", "bool")),
        ([[1.0, 2.0], [3.0, 4.0]], Column("a", "vector", width=2)),
        (pa.array(["x", "y"]).dictionary_encode(), Column("a", "category", values="string")),
    ],
)
def test_typed_columns_keep_their_type(cells: Any, column: Column) -> None:
    assert resolve({"a": cells, "t": [0, 1]}).column("a") == column


@pytest.mark.parametrize(
    ("first", "second", "type_"),
    [
        ([1], [1.5], "float"),
        ([[1, 2]], [[1.5, 2.5]], "vector"),
        (["x"], [1], "category"),
        (["x"], [[1]], "category"),
        ([None], [2], "int"),
    ],
)
def test_batches_of_different_types_agree_on_one(first: Any, second: Any, type_: str) -> None:
    sample = [pa.record_batch({"a": cells, "t": [0]}) for cells in (first, second)]
    spec = DatasetSpec(source="s", target="t")
    assert resolve_schema(spec, ["a", "t"], sample).column("a").type == type_


@pytest.mark.parametrize(
    ("cells", "type_", "values"),
    [
        ([0, 1], "category", "int"),
        (["no", "yes"], "category", "string"),
        ([True, False], "category", "bool"),
        ([0.5, 1.5], "float", "string"),
    ],
)
def test_a_target_is_classes_or_a_number(cells: list[Any], type_: str, values: str) -> None:
    column = resolve({"a": [1.0, 2.0], "t": cells}).column("t")
    assert (column.type, column.values) == (type_, values)


def test_a_declared_target_type_wins() -> None:
    columns = {"t": ColumnSpec(type="float")}
    assert resolve({"a": [1], "t": [3]}, columns=columns).column("t").type == "float"


def test_features_are_what_is_left_over() -> None:
    columns = {"note": ColumnSpec(type="string")}
    cells = {"id": ["k"], "a": [1.0], "note": ["long"], "t": ["x"]}
    schema = resolve(cells, key=("id",), columns=columns)
    assert schema.features == ("a",)
    assert schema.arrow.names == ["id", "a", "t", "note"]


def test_stored_types_hold_and_a_declaration_overrides_them() -> None:
    stored = resolve({"a": [1.5], "t": ["x"]})
    later = {"a": ["oops"], "t": ["y"]}
    assert resolve(later, stored).column("a").type == "float"
    declared = {"a": ColumnSpec(type="category")}
    assert resolve(later, stored, columns=declared).column("a").type == "category"


def test_limits_and_nullability_are_those_declared_now() -> None:
    stored = resolve({"a": [1.5], "t": ["x"]}, columns={"a": ColumnSpec(min=0, nullable=True)})
    assert stored.column("a") == Column("a", "float", min=0, nullable=True)
    assert resolve({"a": [1.5], "t": ["x"]}, stored).column("a") == Column("a", "float")


def test_a_target_is_never_nullable() -> None:
    columns = {"t": ColumnSpec(nullable=True)}
    assert not resolve({"a": [1], "t": ["x"]}, columns=columns).column("t").nullable


def test_a_schema_survives_json() -> None:
    columns = {"a": ColumnSpec(categories=("y", "x")), "b": ColumnSpec(min=0, max=1)}
    schema = resolve(
        {"a": ["x"], "b": [0.5], "t": [1]}, columns=columns, key=("b",), features=("a",)
    )
    assert schema.column("a").categories == ("x", "y")
    assert TableSchema.from_json(schema.as_json()) == schema


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"a": pa.nulls(2), "t": [0, 1]}, {}, "no value in column 'a'"),
        ({"a": [[1.0]], "t": [[1.0]]}, {}, "holds a vector"),
        ({"a": pa.array([0], pa.time32("s")), "t": [0]}, {}, "'a' is plain text, or of a type"),
        ({"a": pa.array([0], pa.timestamp("s")), "t": [0]}, {}, "no column of s is left"),
        ({"d": ["2024-01-31"], "t": [0]}, {"features": ("d",)}, "'d' holds dates"),
        (
            {"d": pa.array([0], pa.date32()), "t": [0]},
            {"features": ("d",)},
            "cannot be features yet",
        ),
        ({"a": [1], "t": [0]}, {"features": ("a", "t")}, "among the features"),
        ({"t": [0]}, {}, "no column of s is left"),
        ({"_key": [0], "t": [0]}, {}, "reserved for Millrace"),
        ({"a": [0.5], "t": [0]}, {"columns": {"a": {"type": "category"}}}, "cannot be a category"),
        ({"a": ["x"], "t": [0]}, {"columns": {"a": {"min": 0}}}, "min and max are for numbers"),
        ({"a": [1.0], "t": [0]}, {"columns": {"a": {"min": 2, "max": 1}}}, "min 2 is above max 1"),
        (
            {"a": [1], "t": [0]},
            {"columns": {"a": {"type": "int", "categories": [1]}}},
            "categories are for",
        ),
    ],
)
def test_what_cannot_be_learnt_from_is_told(
    columns: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        resolve(columns, **more)


@pytest.mark.parametrize(
    "cells",
    [
        ["2024-01-31", None],
        ["2024-01-31T10:00:00Z", "2024-02-01 11:30:00.5+02:00"],
        ["2024-01-31"] * 18 + ["NA", "soon"],
        pa.array([0, 1], pa.date32()),
        pa.array([0, 1], pa.timestamp("us", "UTC")),
    ],
)
def test_dates_are_kept_and_not_learnt_from(cells: Any) -> None:
    schema = resolve({"d": cells, "a": [1.0] * len(cells), "t": [0] * len(cells)})
    assert schema.features == ("a",)
    assert schema.column("d") == Column("d", "string", nullable=True)


def test_a_declared_category_of_dates_is_learnt_from() -> None:
    columns = {"d": ColumnSpec(type="category")}
    assert resolve({"d": ["2024-01-31"], "t": [0]}, columns=columns).features == ("d",)


def test_a_date_stays_one_whatever_the_next_rows_hold() -> None:
    stored = resolve({"d": ["2024-01-31"], "a": [1.0], "t": [0]})
    assert resolve({"d": ["soon"], "a": [2.0], "t": [1]}, stored) == stored


def test_a_table_that_took_dates_for_categories_is_mended() -> None:
    cells = {"d": ["2024-01-31"], "a": [1.0], "t": [0]}
    stored = resolve(cells, columns={"d": ColumnSpec(type="category")})
    assert resolve(cells, stored).features == ("a",)


def test_typed_text_that_says_true_is_a_category() -> None:
    assert resolve({"a": ["true", "false"], "t": [0, 1]}).column("a").type == "category"


def test_a_target_of_truth_values_with_a_typo_is_text() -> None:
    cells = ["true", "false"] * 9 + ["tru"]
    column = resolve({"a": ["1"] * 19, "t": cells}, text=True).column("t")
    assert (column.type, column.values) == ("category", "string")


def test_a_schema_is_described_in_one_line() -> None:
    cells = {
        "id": ["k"],
        "age": [1],
        "plan": ["x"],
        "image": [[1.0, 2.0]],
        "signup": ["2024-01-31"],
        "churn": [0],
    }
    schema = resolve(cells, key=("id",), target="churn")
    found = schema.with_categories({"plan": ("x", "y"), "churn": (0, 1, 2)})
    assert describe_schema(found) == (
        "age int, plan category of 2, image vector of 2; stored, but not features: id, signup; "
        "target churn category of 3"
    )


def test_a_text_cannot_be_nullable() -> None:
    cells, declared = {"a": ["x"], "t": ["y"]}, {"a": ColumnSpec(type="text")}
    stored = resolve(cells, columns=declared)
    with pytest.raises(InputError, match="nothing to learn from a missing text"):
        resolve(cells, stored, columns={"a": ColumnSpec(nullable=True)})
    with pytest.raises(ValueError, match="a text cannot be nullable"):
        ColumnSpec(type="text", nullable=True)
    assert resolve({"a": ["x"], "t": ["y"]}, columns=declared).column("a") == Column("a", "text")
