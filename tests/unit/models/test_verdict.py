from dataclasses import replace

import pytest

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.publish_decision import decide, nulls_hint
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.snapshots import Snapshot

SPEC = DatasetSpec(source="s.csv", target="t", max_quarantine=0.1)
SCHEMA = TableSchema((Column("a", "float"), Column("t", "category")), (), "t", ("a",))
STATISTICS = {"t": ColumnStatistics(90, 0, None, (("x", 50), ("y", 40)))}
STORED = Snapshot("n", "uri", 3, "d1", 90, SCHEMA, STATISTICS, {})
READ = replace(STORED, version=-1, quarantined=10, reasons={"a: null": 7, "t: null": 3})


def test_the_first_rows_are_published() -> None:
    assert decide(READ, None, SPEC, "q") == "publish"


def test_the_same_rows_under_the_same_schema_are_unchanged() -> None:
    assert decide(READ, STORED, SPEC, "q") == "unchanged"


@pytest.mark.parametrize(
    "stored", [replace(STORED, digest="d0"), replace(STORED, schema=replace(SCHEMA, features=()))]
)
def test_other_rows_or_another_schema_are_published(stored: Snapshot) -> None:
    assert decide(READ, stored, SPEC, "q") == "publish"


def test_too_many_bad_rows_are_refused_with_the_reasons() -> None:
    verdict = decide(replace(READ, quarantined=11), None, SPEC, "/tables/q")
    assert isinstance(verdict, InputError)
    assert "11 of the 101 rows of s.csv" in str(verdict)
    assert "a: null (7 rows); t: null (3 rows)" in str(verdict)
    one = decide(replace(READ, quarantined=11, reasons={"a: null": 1}), None, SPEC, "q")
    assert "a: null (1 row)" in str(one)
    assert "at most 10.0%" in str(verdict)
    assert "/tables/q" in str(verdict)


def test_nothing_but_bad_rows_is_refused_whatever_is_allowed() -> None:
    spec = SPEC.model_copy(update={"max_quarantine": 1.0})
    assert "all of the 10 rows" in str(decide(replace(READ, rows=0), None, spec, "q"))


def test_one_class_is_refused() -> None:
    one = replace(READ, statistics={"t": ColumnStatistics(90, 0, None, (("x", 90),))})
    assert "only one class" in str(decide(one, None, SPEC, "q"))


def test_a_category_that_holds_no_value_is_refused() -> None:
    empty = Column("c", "category", nullable=True, categories=())
    schema = TableSchema((empty, Column("t", "category")), (), "t", ("c",))
    assert "'c' holds no value" in str(decide(replace(READ, schema=schema), None, SPEC, "q"))


def test_nulls_in_a_feature_are_told_with_the_remedy() -> None:
    assert "dataset.columns: {a: {nullable: true}}" in str(
        decide(replace(READ, quarantined=11), None, SPEC, "q")
    )
    stored = replace(STORED, reasons={"a: null": 1})
    assert "networks replace them by the mean" in str(nulls_hint(stored))


@pytest.mark.parametrize("reasons", [{}, {"t: null": 3}, {"a: not a number": 2}])
def test_without_nulls_in_a_feature_there_is_no_remedy(reasons: dict[str, int]) -> None:
    assert nulls_hint(replace(READ, reasons=reasons)) is None
