"""Which words are null: in every type but text, as the pipeline file says."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import NULL_VALUES, DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.coerce import cast
from millrace.models.data.ingest import ingest
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.models.inference.features import Encoding, Feature


@pytest.fixture
def made(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Ingest rows of a number, a category and a target."""
    installation = Installation(tmp_path, "", str(tmp_path / "tables")).prepared()

    def make(rows: Sequence[str], **dataset: object) -> Snapshot:
        (tmp_path / "r.csv").write_text("\n".join(["n,c,t", *rows]) + "\n")
        values = {"source": "r.csv", "target": "t", "max_quarantine": 0.5, **dataset}
        pipeline = Pipeline(name="p", dataset=DatasetSpec.model_validate(values))
        return ingest(pipeline.with_folder(tmp_path), installation)

    return make


@pytest.mark.parametrize("type_", ["float", "int", "bool", "category"])
def test_a_word_is_null_in_each_type(type_: Any) -> None:
    seen = cast(pa.array(["1", "NA", "", "#N/A", None]), Column("a", type_))
    assert seen.values.is_null().to_pylist() == [False, True, True, True, True]
    assert not seen.unparsable.any()


@pytest.mark.parametrize("type_", ["string", "text"])
def test_a_text_keeps_its_words(type_: Any) -> None:
    assert cast(pa.array(["NA"]), Column("a", type_)).values.to_pylist() == ["NA"]


def test_a_category_that_is_declared_is_no_null() -> None:
    column = Column("a", "category", categories=("NA", "US"))
    assert cast(pa.array(["NA", "null"]), column).values.to_pylist() == ["NA", None]


@pytest.mark.parametrize("type_", ["float", "int"])
def test_a_number_can_stand_for_null(type_: Any) -> None:
    seen = cast(pa.array(["-999", "5"]), Column("a", type_), ("-999",))
    assert seen.values.to_pylist() == [None, 5]


def test_without_words_each_is_a_value_or_bad() -> None:
    assert cast(pa.array(["NA"]), Column("a", "category"), ()).values.to_pylist() == ["NA"]
    assert cast(pa.array(["NA"]), Column("a", "float"), ()).unparsable.all()


ROWS = [f"{n},{'ab'[n % 2]},{'yes' if n % 3 else 'no'}" for n in range(40)]


def test_a_target_gets_no_class_of_nulls(made) -> None:  # type: ignore[no-untyped-def]
    snapshot = made([*ROWS, "1,a,NA"])
    assert snapshot.schema.column("t").categories == ("no", "yes")
    assert snapshot.reasons == {"t: null": 1}


def test_nulls_of_a_category_are_refused_with_both_remedies(made) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as refused:
        made([*ROWS, *["1,NA,no"] * 10], max_quarantine=0.05)
    assert "{c: {nullable: true}}" in refused.value.hint
    assert "dataset.null_values" in refused.value.hint
    accepted = made([*ROWS, *["1,NA,no"] * 10], null_values=[])
    assert accepted.schema.column("c").categories == ("NA", "a", "b")


def test_other_words_are_other_nulls_and_all_rows_are_read_again(made) -> None:  # type: ignore[no-untyped-def]
    rows = [*ROWS, *["5,?,no"] * 5]
    columns = {"c": {"nullable": True}}
    before = made(rows, columns=columns)
    assert "?" in before.schema.column("c").categories
    after = made(rows, columns=columns, null_values=["?"])
    assert (after.rows, after.schema.column("c").categories) == (45, ("a", "b"))


def test_a_category_that_looks_like_a_null_is_warned_of(made, caplog) -> None:  # type: ignore[no-untyped-def]
    made([*ROWS, "1,Unknown,no", "1,Unknown,no", "1,-,no"])
    (line,) = [r.getMessage() for r in caplog.records if "missing value" in r.getMessage()]
    assert "column c" in line
    assert "'Unknown' (2 cells)" in line
    assert "'-' (1 cell)" in line
    assert "dataset.null_values" in line


def test_an_earlier_snapshot_keeps_its_words() -> None:
    def read(*categories: str) -> TableSchema:
        column = Column("t", "category", categories=categories)
        values = TableSchema((column,), (), "t", ()).as_json()
        del values["null_values"]
        return TableSchema.from_json(json.loads(json.dumps(values)))

    assert read("NA", "a").null_values == ()
    assert read("a", "b").null_values == NULL_VALUES


def test_a_model_reads_the_same_nulls() -> None:
    features = (Feature("n", "number", nullable=True), Feature("c", "category", categories=("a",)))
    encoding = Encoding(features, "t", null_values=("?",))
    rows = pa.record_batch({"n": ["?", "NA"], "c": ["a", "a"]})
    for each in (encoding, Encoding.from_json(encoding.to_json())):
        assert each.errors(each.encode(rows)) == [None, "n is not a finite number"]
