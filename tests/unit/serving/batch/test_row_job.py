import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.data.row_checks import check
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.sources.source import Chunk, Unreadable
from millrace.models.data.split import hash_rows, with_keys
from millrace.models.inference.features import FEATURES as ENCODED
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.serving.batch.carried_columns import select_carried
from millrace.serving.batch.input.reader import split_chunk
from millrace.serving.batch.job import DEAD, ROW
from millrace.serving.batch.row_job import RowJob, Scorer

WriteModel = Callable[[Path, int], Path]

LABELS = ("no", "yes")
FEATURES = (Feature("v", "vector", width=2), Feature("c", "category", categories=("x", "y")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, write_model: WriteModel) -> Path:
    return write_model(tmp_path_factory.mktemp("scorer") / "model.onnx", 2)


def parts(job: RowJob, table: pa.Table, *lines: Unreadable) -> tuple[pa.Table, pa.Table]:
    """Return the rows to score, and the dead."""
    columns = [column.combine_chunks() for column in table.columns]
    batch = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    return split_chunk(Chunk(batch, lines), 100, job.encoded(batch))


def answered(job: RowJob, table: pa.Table) -> pa.Table:
    return Scorer(job)(parts(job, table)[0]).rows


def scorer(model: Path, key: tuple[str, ...] = ("id",)) -> Callable[[pa.Table], pa.Table]:
    return partial(answered, RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), key))


def rows(**more: object) -> pa.Table:
    columns = {
        "id": [10, 11, 12],
        "v": [[0.75, 0.25], [0.125, 0.875], [0.5, 0.25]],
        "c": ["x", "y", "x"],
    }
    return pa.table({**columns, **more})


def test_every_row_is_answered(model: Path) -> None:
    assert scorer(model)(rows()).to_pydict() == {
        "_key": ["10", "11", "12"],
        "prediction": ["no", "yes", "no"],
        "score": [0.75, 0.875, 0.5],
        "model_version": [7, 7, 7],
        "_row": [100, 101, 102],
    }


def test_the_types_do_not_depend_on_the_rows(model: Path) -> None:
    whole = scorer(model)(rows())
    broken = scorer(model)(rows(c=["z", "z", "z"]))
    assert broken.schema == whole.schema


@pytest.mark.parametrize(
    ("column", "cells", "error"),
    [
        ("c", ["x", "z", "x"], "c is an unknown category"),
        ("c", ["x", None, "x"], "c is missing"),
        ("v", [[0.75, 0.25], None, [0.5, 0.25]], "v is missing"),
        ("v", [[0.75, 0.25], [None, 1.0], [0.5, 0.25]], "v is missing"),
    ],
)
def test_a_row_that_cannot_be_encoded_is_dead_with_the_reason(
    model: Path, column: str, cells: list[object], error: str
) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), ("id",))
    good, dead = parts(job, rows(**{column: cells}))
    assert Scorer(job)(good).rows.select(["_key", "prediction", "score"]).to_pydict() == {
        "_key": ["10", "12"],
        "prediction": ["no", "no"],
        "score": [0.75, 0.5],
    }
    assert dead.drop_columns(["row"]).to_pylist() == [{"_row": 101, "_key": "11", "reason": error}]
    assert json.loads(dead["row"][0].as_py())[column] == cells[1]


def test_a_number_is_predicted(tmp_path: Path, write_model: WriteModel) -> None:
    path = write_model(tmp_path / "model.onnx", 1)
    answers = answered(RowJob("m", 7, "digest", path, Encoding(FEATURES, "t"), ("id",)), rows())
    assert answers["prediction"].to_pylist() == [0.75, 0.125, 0.5]
    assert answers["score"].to_pylist() == [0.75, 0.125, 0.5]


@pytest.mark.parametrize("labels", [(3, 5), (False, True)])
def test_a_prediction_has_the_type_of_its_label(model: Path, labels: tuple[int, int]) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", labels), ("id",))
    predictions = answered(job, rows())["prediction"].to_pylist()
    assert [(type(p), p) for p in predictions] == [(type(labels[0]), labels[n]) for n in (0, 1, 0)]


def test_several_key_columns_are_joined(model: Path) -> None:
    answers = scorer(model, key=("id", "c"))(rows())
    assert answers["_key"].to_pylist() == ["10|x", "11|y", "12|x"]


def test_the_key_of_a_dataset_is_kept(model: Path) -> None:
    answers = scorer(model)(rows(_key=["k1", "k2", "k3"]))
    assert answers["_key"].to_pylist() == ["k1", "k2", "k3"]


@pytest.mark.parametrize(
    "ids",
    [
        pa.array(["a", "b", "c"], pa.large_string()),
        pa.array(["a", "b", "c"]).dictionary_encode(),
    ],
)
def test_a_key_column_may_be_of_any_kind_of_text(model: Path, ids: pa.Array) -> None:
    assert scorer(model)(rows(id=ids))["_key"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("ids", [pa.nulls(3), pa.nulls(3, pa.string())])
def test_a_row_without_its_key_is_dead(model: Path, ids: pa.Array) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), ("id",))
    good, dead = parts(job, rows(id=ids))
    assert (len(good), dead["reason"].to_pylist()) == (0, ["the key is missing, or not text"] * 3)


def test_a_row_has_one_reason_that_of_the_model_first(model: Path) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), ("id",))
    dead = parts(job, rows(id=[1, None, None], c=["x", "z", "x"]))[1]
    assert dead["reason"].to_pylist() == [
        "c is an unknown category",
        "the key is missing, or not text",
    ]


def test_a_whole_number_that_a_reader_made_a_float_keeps_its_key(model: Path) -> None:
    assert scorer(model)(rows(id=[10.0, 11.0, 12.0]))["_key"].to_pylist() == ["10", "11", "12"]


def hashed(model: Path, table: pa.Table) -> list[str]:
    return scorer(model, key=())(table)["_key"].to_pylist()  # type: ignore[no-any-return]


def test_without_key_columns_a_row_is_known_by_the_hash_of_its_features(model: Path) -> None:
    """Pinned: a change here gives every scored row another key."""
    keys = hashed(model, rows())
    assert keys[:2] == ["cb3d3ac436186007655a2630da94a955", "5e50e6eeaec29190a4f1efb7af1e1fb8"]
    assert len(set(keys)) == 3


def test_the_hash_does_not_depend_on_neighbours(model: Path) -> None:
    assert hashed(model, rows().slice(1)) == hashed(model, rows())[1:]


@pytest.mark.parametrize(
    "more",
    [
        {"note": ["p", "q", "r"]},
        {"id": pa.nulls(3)},
        {"c": pa.array(["x", "y", "x"], pa.large_string())},
        {"c": pa.array(["x", "y", "x"]).dictionary_encode()},
        {"v": pa.array([[0.75, 0.25], [0.125, 0.875], [0.5, 0.25]], pa.list_(pa.float32(), 2))},
    ],
)
def test_the_hash_depends_neither_on_other_columns_nor_on_what_a_reader_made_of_them(
    model: Path, more: dict[str, object]
) -> None:
    assert hashed(model, rows(**more)) == hashed(model, rows())


def test_rows_that_cannot_be_encoded_have_keys(model: Path) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS))
    dead = parts(job, rows(c=pa.nulls(3)))[1]
    assert len(set(dead["_key"].to_pylist()) - {None}) == 3


@pytest.mark.parametrize("key", [(), ("id",)])
def test_no_rows_give_no_predictions_of_the_same_types(model: Path, key: tuple[str, ...]) -> None:
    answers = scorer(model, key=key)(rows().slice(0, 0))
    assert (len(answers), answers.schema) == (0, scorer(model)(rows()).schema)


@pytest.mark.parametrize("labels", [("no", "yes"), (3, 5), (False, True)])
def test_the_schema_of_the_predictions_is_known_beforehand(
    model: Path, labels: tuple[str | int | bool, ...]
) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", labels), ("id",))
    assert answered(job, rows()).schema == job.output


def test_a_table_of_several_chunks_is_scored_whole(model: Path) -> None:
    table = rows()
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert scorer(model, key=())(chunked).to_pydict() == scorer(model, key=())(table).to_pydict()


def test_other_columns_are_left_out(model: Path) -> None:
    answers = scorer(model)(rows(note=["a", "b", "c"]))
    assert "note" not in answers.column_names


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="is not a model that ONNX Runtime can run"):
        Scorer(RowJob("m", 7, "digest", tmp_path / "model.onnx", Encoding(FEATURES, "t", LABELS)))


def test_a_bad_row_leaves_its_neighbours_answers_as_they_are(model: Path) -> None:
    whole = scorer(model)(rows())["score"].to_pylist()
    assert scorer(model)(rows(c=["x", "z", "x"]))["score"].to_pylist() == [whole[0], whole[2]]


def test_an_answer_that_is_no_number_is_dead(tmp_path: Path, write_model: WriteModel) -> None:
    path = write_model(tmp_path / "model.onnx", 1)
    job = RowJob("m", 7, "digest", path, Encoding((Feature("v", "vector", width=3),), "t"), ("id",))
    good = pa.table(
        {
            "_row": [0, 1],
            "_key": ["a", "b"],
            "features": pa.FixedSizeListArray.from_arrays(
                pa.array([float("nan"), 1, 1, 0.5, 1, 1], pa.float32()), 3
            ),
        }
    )
    answers = Scorer(job)(good)
    assert answers.rows["_key"].to_pylist() == ["b"]
    assert answers.refused.schema == DEAD
    assert answers.refused.select(["_row", "_key", "reason"]).to_pylist() == [
        {"_row": 0, "_key": "a", "reason": "the model's answer is not a number"}
    ]


HELD = (
    Column("id", "int"),
    Column("x", "float", nullable=True),
    Column("n", "int"),
    Column("flag", "bool"),
    Column("code", "category", categories=("007", "7", "NA")),
    Column("size", "category", categories=(7, 8), values="int"),
    Column("t", "category", categories=("no", "yes")),
)
INGESTED = TableSchema(HELD, ("id", "code"), "t", ("x", "n", "flag", "code", "size"))
AS_INGESTED = Encoding(
    (
        Feature("x", "number", nullable=True),
        Feature("n", "number"),
        Feature("flag", "number"),
        Feature("code", "category", categories=("007", "7", "NA")),
        Feature("size", "category", categories=(7, 8)),
    ),
    "t",
    LABELS,
)
GOOD = {"id": "1", "x": "0.5", "n": "2", "flag": "true", "code": "007", "size": "7", "t": "no"}


@pytest.mark.parametrize(
    "cells",
    [
        {},
        *({"id": text} for text in ("007", "7.0", " 7 ", "+7")),
        *({"x": text} for text in (None, "NA", "nan", "1e3", " 2.5 ", "+1.", "abc", "inf")),
        *({"n": text} for text in ("3.0", "007", "-4", None, "NA", "abc", "1e400")),
        *({"flag": text} for text in ("True", "FALSE", "1", "0", "yes", "n", "2", "", None)),
        *({"code": text} for text in ("7", "NA", "07", None)),
        *({"size": text} for text in ("8.0", "08", "9", "x", None)),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_text_comes_out_as_in_ingestion(cells: dict[str, Any], alone: bool) -> None:
    """What ingestion takes has the same key and features, what it refuses has an error."""
    table = [GOOD | cells] if alone else [GOOD | cells, GOOD, GOOD | {"x": "odd", "n": "odd"}]
    types = pa.schema([(name, pa.string()) for name in GOOD])
    batch = pa.RecordBatch.from_pylist(table, schema=types)
    job = RowJob("m", 7, "digest", Path(), AS_INGESTED, INGESTED.key, HELD)
    (first, *_) = job.encoded(batch).to_pylist()
    good = check(batch.slice(0, 1), INGESTED).good
    assert (first["error"] is None) == (good.num_rows == 1)
    if good.num_rows:
        keyed = with_keys(good, INGESTED, hash_rows(good))
        assert first["_key"] == keyed["_key"][0].as_py()
        np.testing.assert_array_equal([first[ENCODED]], AS_INGESTED.encode(keyed))


def test_true_and_false_mean_the_same_as_text_and_as_such() -> None:
    encoding = Encoding((Feature("f", "number"),), "t")
    job = RowJob("m", 7, "digest", Path(), encoding, (), (Column("f", "bool"),))
    texts, values = pa.table({"f": ["true", "False"]}), pa.table({"f": [True, False]})
    assert job.encoded(texts).equals(job.encoded(values))
    assert job.encoded(texts)[ENCODED].to_pylist() == [[1.0], [0.0]]


def test_a_key_that_is_not_of_the_held_type_stays_as_it_is(model: Path) -> None:
    job = RowJob("m", 7, "d", model, Encoding(FEATURES, "t", LABELS), ("id",), HELD)
    keys = job.encoded(rows(id=["007", "x7", None]))["_key"].to_pylist()
    assert keys == ["7", "x7", None]


def test_a_column_that_is_not_there_is_missing(model: Path) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), ("id",))
    dead = parts(job, rows().drop_columns(["c"]))[1]
    assert dead["reason"].to_pylist() == ["c is missing"] * 3


def test_lines_that_are_no_rows_are_dead_in_their_places(model: Path) -> None:
    job = RowJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), ("id",))
    good, dead = parts(job, rows(), Unreadable("line has 1 cells, not 3", "x", before=1))
    assert good[ROW].to_pylist() == [100, 102, 103]
    assert dead.to_pylist() == [
        {"_row": 101, "_key": None, "reason": "line has 1 cells, not 3", "row": '{"line": "x"}'}
    ]


def test_a_text_without_key_columns_is_known_by_all_of_it() -> None:
    tokenizer = train_tokenizer(["one two three"], vocab_size=270, max_tokens=4)
    encoding = Encoding((Feature("body", "text", 4),), "t", LABELS, tokenizer=tokenizer)
    job = RowJob("m", 1, "digest", Path(), encoding)
    texts = pa.table({"body": ["one two three four five", "one two three four six", None]})
    table = job.encoded(texts)
    assert len(set(table["_key"].to_pylist())) == 3
    again = job.encoded(texts.slice(1, 1))
    assert again["_key"][0] == table["_key"][1]
    assert table["error"].to_pylist() == [None, None, "body is missing"]


ID = Column("id", "int")


def test_carried_columns_have_their_names_and_types(model: Path) -> None:
    encoding = Encoding(FEATURES, "t", LABELS)
    job = RowJob("m", 7, "d", model, encoding, ("id",), (ID,), carried=("id", "note"))
    table = answered(job, rows(note=[1.5, None, 3.25]))
    assert table.schema.equals(job.output)
    assert table["id"].to_pylist() == [10, 11, 12]
    assert table["note"].to_pylist() == ["1.5", None, "3.25"]
    assert job.needed == ("v", "c", "note")
    assert "id" in job.columns
    plain = RowJob("m", 7, "d", model, encoding, ("id",), (ID,))
    assert job.parameters() != plain.parameters()
    assert "carried" not in plain.parameters()


@pytest.mark.parametrize("top", [1, 2])
def test_the_best_classes_are_written_with_their_probabilities(model: Path, top: int) -> None:
    job = RowJob("m", 7, "d", model, Encoding(FEATURES, "t", LABELS), ("id",), top_scores=top)
    table = answered(job, rows())
    assert table.schema.equals(job.output)
    found = table["scores"].to_pylist()
    assert [len(each) for each in found] == [top] * 3
    assert [each[0] for each in found] == [
        {"label": label, "score": score}
        for label, score in zip(
            table["prediction"].to_pylist(), table["score"].to_pylist(), strict=True
        )
    ]
    assert all(each == sorted(each, key=lambda pair: -pair["score"]) for each in found)


def test_what_a_user_names_must_not_be_in_the_output() -> None:
    assert select_carried(("city", "id"), ("id", "date", "Score")) == ("id", "city")
    assert select_carried(("City", "city"), ("Date",)) == ("City",)
    with pytest.raises(InputError, match="batch.columns has score, which the predictions have"):
        select_carried(("score",), ())
