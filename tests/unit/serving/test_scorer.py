from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper

from models.errors import InputError
from models.features import Encoding, Feature
from serving.scorer import ScoreJob, Scorer, output_schema

LABELS = ("no", "yes")
FEATURES = (Feature("v", "vector", width=2), Feature("c", "category", categories=("x", "y")))


def write_model(path: Path, outputs: int) -> Path:
    """Write a model that gives back the first of its three inputs, so answers are known."""
    graph = helper.make_graph(
        [helper.make_node("Slice", ["features", "zero", "outputs", "one"], ["answers"])],
        "first",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["rows", outputs])],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], [value])
            for name, value in (("zero", 0), ("outputs", outputs), ("one", 1))
        ],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("scorer") / "model.onnx", outputs=2)


def scorer(model: Path, key: tuple[str, ...] = ("id",)) -> Scorer:
    return Scorer(ScoreJob("m", 7, "digest", model, Encoding(FEATURES, "t", LABELS), key))


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
        "error": [None, None, None],
    }


def test_the_types_do_not_depend_on_the_rows(model: Path) -> None:
    whole = scorer(model)(rows())
    broken = scorer(model)(rows(c=["z", "z", "z"]))
    assert broken.schema == whole.schema


@pytest.mark.parametrize(
    ("column", "cells", "error"),
    [
        ("c", ["x", "z", "x"], "c is unknown or missing"),
        ("c", ["x", None, "x"], "c is unknown or missing"),
        ("v", [[0.75, 0.25], None, [0.5, 0.25]], "v is missing"),
        ("v", [[0.75, 0.25], [None, 1.0], [0.5, 0.25]], "v is missing"),
    ],
)
def test_a_row_that_cannot_be_encoded_is_kept_with_the_reason(
    model: Path, column: str, cells: list[object], error: str
) -> None:
    answers = scorer(model)(rows(**{column: cells})).to_pydict()
    assert answers["error"] == [None, error, None]
    assert answers["prediction"] == ["no", None, "no"]
    assert answers["score"] == [0.75, None, 0.5]


def test_a_number_is_predicted(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.onnx", outputs=1)
    answers = Scorer(ScoreJob("m", 7, "digest", path, Encoding(FEATURES, "t"), ("id",)))(rows())
    assert answers["prediction"].to_pylist() == [0.75, 0.125, 0.5]
    assert answers["score"].to_pylist() == [0.75, 0.125, 0.5]


@pytest.mark.parametrize("labels", [(3, 5), (False, True)])
def test_a_prediction_has_the_type_of_its_label(model: Path, labels: tuple[int, int]) -> None:
    job = ScoreJob("m", 7, "digest", model, Encoding(FEATURES, "t", labels), ("id",))
    predictions = Scorer(job)(rows())["prediction"].to_pylist()
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


def test_a_key_that_is_missing_everywhere_stays_missing(model: Path) -> None:
    assert scorer(model)(rows(id=pa.nulls(3)))["_key"].to_pylist() == [None] * 3


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
    keys = hashed(model, rows(c=pa.nulls(3)))
    assert len(set(keys)) == 3


@pytest.mark.parametrize("key", [(), ("id",)])
def test_no_rows_give_no_predictions_of_the_same_types(model: Path, key: tuple[str, ...]) -> None:
    answers = scorer(model, key=key)(rows().slice(0, 0))
    assert (len(answers), answers.schema) == (0, scorer(model)(rows()).schema)


@pytest.mark.parametrize("labels", [("no", "yes"), (3, 5), (False, True)])
def test_the_schema_of_the_predictions_is_known_beforehand(
    model: Path, labels: tuple[str | int | bool, ...]
) -> None:
    encoding = Encoding(FEATURES, "t", labels)
    answers = Scorer(ScoreJob("m", 7, "digest", model, encoding, ("id",)))(rows())
    assert answers.schema == output_schema(encoding)


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
        scorer(tmp_path / "model.onnx")


def test_a_bad_row_leaves_its_neighbours_answers_as_they_are(model: Path) -> None:
    whole = scorer(model)(rows())["score"].to_numpy()
    broken = scorer(model)(rows(c=["x", "z", "x"]))["score"].to_pylist()
    np.testing.assert_array_equal([broken[0], broken[2]], whole[[0, 2]])
