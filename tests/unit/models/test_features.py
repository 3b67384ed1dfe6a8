from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.data.schema import Column, TableSchema
from millrace.models.inference.features import Encoding, Feature, fit_encoding, text_column
from millrace.models.inference.tokenizer import train_tokenizer

NUMBER = Feature("a", "number")
VECTOR = Feature("v", "vector", width=2)


def encoded(feature: Feature, cells: object) -> list[list[float]]:
    batch = pa.record_batch({feature.name: cells})
    return Encoding((feature,), "t").encode(batch).tolist()  # type: ignore[no-any-return]


def category(*values: str | int | bool, nullable: bool = False) -> Feature:
    return Feature("c", "category", categories=values, nullable=nullable)


@pytest.mark.parametrize(
    "cells",
    [[1.5, 2.0], pa.array([1.5, 2.0], pa.float32()), pa.array([1.5, 2.0], pa.float16())],
)
def test_numbers_of_any_width_become_float32(cells: object) -> None:
    rows = Encoding((NUMBER,), "t").encode(pa.record_batch({"a": cells}))
    assert rows.dtype == np.float32
    assert rows.tolist() == [[1.5], [2.0]]


def test_whole_numbers_become_floats() -> None:
    assert encoded(NUMBER, [1, -2]) == [[1.0], [-2.0]]


def test_a_whole_number_beyond_float32_is_rounded() -> None:
    assert encoded(NUMBER, [2**24 + 1, 1_700_000_123]) == [[2.0**24], [1_700_000_128.0]]


def test_bools_become_zero_and_one() -> None:
    assert encoded(NUMBER, [True, False]) == [[1.0], [0.0]]


@pytest.mark.parametrize("cells", [pa.array([None, 1.0]), pa.array([None, 1]), [None, True]])
def test_a_null_number_becomes_nan(cells: object) -> None:
    np.testing.assert_array_equal(encoded(NUMBER, cells), [[np.nan], [1.0]])


def test_a_category_becomes_its_position() -> None:
    assert encoded(category("x", "y"), ["y", "x"]) == [[1.0], [0.0]]


def test_a_missing_category_becomes_nan_and_an_unknown_one_infinite() -> None:
    np.testing.assert_array_equal(encoded(category("x"), ["z", None]), [[np.inf], [np.nan]])


def test_integer_codes_are_found_in_text() -> None:
    assert encoded(category(7, 9), ["9", "7"]) == [[1.0], [0.0]]


def test_text_categories_are_found_in_integers() -> None:
    assert encoded(category("7", "9"), [9, 7]) == [[1.0], [0.0]]


def test_integer_codes_survive_a_reader_that_made_floats_of_them() -> None:
    np.testing.assert_array_equal(encoded(category(7, 9), [9.0, None]), [[1.0], [np.nan]])


def test_bool_categories_are_found() -> None:
    assert encoded(category(False, True), [True, False]) == [[1.0], [0.0]]


def test_a_dictionary_column_is_a_category() -> None:
    cells = pa.array(["y", "x", "y"]).dictionary_encode()
    assert encoded(category("x", "y"), cells) == [[1.0], [0.0], [1.0]]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float32()), pa.list_(pa.int64()), pa.list_(pa.float64(), 2)]
)
def test_a_vector_takes_as_many_places_as_it_is_wide(kind: pa.DataType) -> None:
    assert encoded(VECTOR, pa.array([[1, 2], [3, 4]], kind)) == [[1.0, 2.0], [3.0, 4.0]]


def test_a_null_vector_becomes_nans() -> None:
    np.testing.assert_array_equal(encoded(VECTOR, [None, [3.0, 4.0]]), [[np.nan] * 2, [3.0, 4.0]])


def test_a_null_inside_a_vector_becomes_nan() -> None:
    np.testing.assert_array_equal(encoded(VECTOR, [[None, 2.0], [3.0, 4.0]])[0], [np.nan, 2.0])


def test_features_keep_their_order_whatever_the_order_of_the_columns() -> None:
    encoding = Encoding((VECTOR, category("x", "y"), NUMBER), "t")
    rows = pa.record_batch({"a": [5.0], "c": ["y"], "other": [0], "v": [[1.0, 2.0]]})
    assert encoding.encode(rows).tolist() == [[1.0, 2.0, 1.0, 5.0]]


def test_a_table_of_several_chunks_is_encoded_as_one() -> None:
    encoding = Encoding((VECTOR, category("x", "y"), NUMBER), "t")
    pieces = [
        pa.table({"a": [float(n)], "c": ["xy"[n % 2]], "v": [[n, n + 0.5]]}) for n in range(3)
    ]
    chunked = pa.concat_tables(pieces)
    assert chunked["a"].num_chunks == 3
    np.testing.assert_array_equal(
        encoding.encode(chunked), encoding.encode(chunked.combine_chunks())
    )


def test_no_rows_are_encoded_as_no_rows() -> None:
    assert Encoding((NUMBER, VECTOR), "t").encode(
        pa.table({"a": pa.array([], pa.float64()), "v": pa.array([], pa.list_(pa.float32()))})
    ).shape == (0, 3)


def test_widths_count_a_category_once_before_and_one_by_one_behind_the_preprocessing() -> None:
    encoding = Encoding((VECTOR, category("x", "y", "z"), NUMBER), "t")
    assert (encoding.raw_width, encoding.in_features) == (4, 6)


def test_a_class_is_encoded_as_its_position() -> None:
    target = Encoding((NUMBER,), "t", ("no", "yes")).encode_target(
        pa.table({"t": ["yes", "no", "yes"]})
    )
    assert (target.dtype, target.tolist()) == (np.int64, [1, 0, 1])


@pytest.mark.parametrize("cells", [[0.5, 2**25], [1, 2**24 + 1]])
def test_a_number_to_predict_is_encoded_as_float32(cells: list[float]) -> None:
    target = Encoding((NUMBER,), "t").encode_target(pa.table({"t": cells}))
    assert target.dtype == np.float32
    np.testing.assert_array_equal(target, np.float32(cells))


def test_an_encoded_target_can_be_written_to_as_torch_asks() -> None:
    batch = pa.record_batch({"t": pa.array([1.0, 2.0], pa.float32())})
    assert Encoding((NUMBER,), "t").encode_target(batch).flags.writeable


def test_errors_name_the_column_that_is_missing() -> None:
    encoding = Encoding((NUMBER, VECTOR), "t")
    rows = pa.record_batch({"a": [1.0, None, 1.0], "v": [[1, 2], [1, 2], [1, None]]})
    assert encoding.errors(encoding.encode(rows)) == [None, "a is missing", "v is missing"]


@pytest.mark.parametrize(
    ("feature", "cells"),
    [
        (category("x"), ["x", None, "?"]),
        (category(1, 2), ["1", None, " ? "]),
        (category(1, 2), ["1", "-9", "-9"]),
        (category(True, False), ["yes", "?", "?"]),
    ],
)
def test_a_category_that_is_null_or_a_word_for_it_is_missing(
    feature: Feature, cells: list[str | None]
) -> None:
    rows = pa.record_batch({"c": cells})
    strict = Encoding((feature,), "t", null_values=("?", "-9"))
    assert strict.errors(strict.encode(rows)) == [None, "c is missing", "c is missing"]
    lenient = replace(strict, features=(replace(feature, nullable=True),))
    assert lenient.errors(lenient.encode(rows)) == [None, None, None]


def test_a_version_is_compared_on_newer_categories_as_on_missing_ones() -> None:
    encoding = Encoding((category("x"), NUMBER), "t")
    rows = encoding.encode_for_comparison(pa.record_batch({"c": ["x", "z"], "a": [1.0, 2.0]}))
    np.testing.assert_array_equal(rows, np.float32([[0, 1], [np.nan, 2]]))


def test_errors_name_a_category_that_is_not_known() -> None:
    encoding = Encoding((category("x"),), "t")
    rows = encoding.encode(pa.record_batch({"c": ["x", "z"]}))
    assert encoding.errors(rows) == [None, "c is an unknown category"]


def test_only_the_first_fault_of_a_row_is_told() -> None:
    encoding = Encoding((NUMBER, category("x")), "t")
    rows = encoding.encode(pa.record_batch({"a": pa.array([None], pa.float64()), "c": ["z"]}))
    assert encoding.errors(rows) == ["a is missing"]


@pytest.mark.parametrize("nullable", [False, True])
def test_an_infinite_number_cannot_be_answered(nullable: bool) -> None:
    encoding = Encoding((Feature("a", "number", nullable=nullable),), "t")
    rows = encoding.encode(pa.record_batch({"a": [1.0, float("inf"), -float("inf"), 1e300]}))
    assert encoding.errors(rows) == [None, *["a is not a finite number"] * 3]


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize(
    "cells", [["1", "x"], ["1", "1e999"], pa.array(["1", "x"]).cast("large_string")]
)
def test_a_number_that_cannot_be_read_spoils_its_row_only(nullable: bool, cells: object) -> None:
    encoding = Encoding((Feature("a", "number", nullable=nullable),), "t")
    rows = encoding.encode(pa.record_batch({"a": cells}))
    assert rows[0] == 1.0
    assert encoding.errors(rows) == [None, "a is not a finite number"]


@pytest.mark.parametrize("nullable", [False, True])
@pytest.mark.parametrize("cells", [["1", "x"], [1.0, 1.5], ["1", "-"], [1, 3], [True, False]])
def test_a_category_that_is_not_known_spoils_its_row_only(cells: object, nullable: bool) -> None:
    encoding = Encoding((replace(category(1, 2), nullable=nullable),), "t")
    rows = encoding.encode(pa.record_batch({"c": cells}))
    assert rows[0] == 0.0
    assert encoding.errors(rows) == [None, "c is an unknown category"]


@pytest.mark.parametrize("cells", [[[1.0], [2.0]], [1.0, 2.0], ["x", "y"]])
def test_a_column_of_another_kind_can_be_read_in_no_row(cells: object) -> None:
    encoding = Encoding((VECTOR,), "t")
    rows = encoding.encode(pa.record_batch({"v": cells}))
    assert encoding.errors(rows) == ["v is not 2 finite numbers"] * 2


def test_vectors_of_other_widths_are_not_mixed_up() -> None:
    encoding = Encoding((VECTOR,), "t")
    cells = [[1.0], [2.0, 3.0, 4.0], [5.0, 6.0], None, []]
    rows = encoding.encode(pa.record_batch({"v": cells}))
    assert rows[2].tolist() == [5.0, 6.0]
    wrong = "v is not 2 finite numbers"
    assert encoding.errors(rows) == [wrong, wrong, None, "v is missing", wrong]


def test_a_null_among_vectors_of_fixed_width_is_missing() -> None:
    encoding = Encoding((VECTOR,), "t")
    cells = pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2))
    rows = encoding.encode(pa.record_batch({"v": cells}))
    assert encoding.errors(rows) == ["v is missing", None]
    assert rows[1].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("feature", [NUMBER, VECTOR, Feature("c", "category", categories=("x",))])
def test_a_column_without_values_is_missing_in_every_row(feature: Feature) -> None:
    encoding = Encoding((feature,), "t")
    rows = encoding.encode(pa.record_batch({feature.name: pa.nulls(2)}))
    assert [error is not None and "missing" in error for error in encoding.errors(rows)] == [
        True
    ] * 2


def test_a_nullable_column_may_be_missing() -> None:
    features = (Feature("a", "number", nullable=True), category("x", nullable=True))
    encoding = Encoding(features, "t")
    rows = pa.record_batch(
        {"a": pa.array([None], pa.float64()), "c": pa.array([None], pa.string())}
    )
    assert encoding.errors(encoding.encode(rows)) == [None]


SCHEMA = TableSchema(
    columns=(
        Column("n", "int"),
        Column("a", "float", nullable=True),
        Column("flag", "bool"),
        Column("v", "vector", width=3),
        Column("c", "category", categories=("x", "y")),
        Column("t", "category", categories=(3, 5), values="int"),
    ),
    key=("n",),
    target="t",
    features=("v", "a", "flag", "c"),
)


def train_batches() -> Iterator[pa.RecordBatch]:
    random = np.random.default_rng(0)
    for rows in (5, 1, 40):
        yield pa.record_batch(
            {
                "v": random.normal(10, 3, (rows, 3)).tolist(),
                "a": pa.array(random.normal(-2, 0.5, rows), mask=random.random(rows) < 0.3),
                "flag": random.random(rows) < 0.5,
                "c": ["x"] * rows,
            }
        )


@pytest.mark.parametrize("name", ["v", "a", "flag"])
def test_mean_and_std_are_those_of_all_train_rows(name: str) -> None:
    fitted = {f.name: f for f in fit_encoding(SCHEMA, train_batches()).features}[name]
    cells = pa.concat_arrays([batch.column(name) for batch in train_batches()])
    values = np.ravel(np.asarray(cells.drop_null().to_pylist(), dtype=np.float32))
    exact = (float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64)))
    assert (fitted.mean, fitted.std) == pytest.approx(exact, rel=1e-9)


def test_a_fitted_encoding_takes_its_features_from_the_schema() -> None:
    encoding = fit_encoding(SCHEMA, train_batches())
    assert [(f.name, f.kind, f.width, f.nullable) for f in encoding.features] == [
        ("v", "vector", 3, False),
        ("a", "number", 1, True),
        ("flag", "number", 1, False),
        ("c", "category", 1, False),
    ]
    assert encoding.features[3].categories == ("x", "y")
    assert (encoding.target, encoding.labels) == ("t", (3, 5))


def test_a_number_to_predict_has_no_labels() -> None:
    schema = TableSchema((Column("a", "float"), Column("t", "float")), (), "t", ("a",))
    assert fit_encoding(schema, [pa.record_batch({"a": [1.0], "t": [2.5]})]).labels == ()


def test_the_target_of_a_regression_is_fitted_on_the_train_split() -> None:
    schema = TableSchema((Column("a", "float"), Column("t", "float")), (), "t", ("a",))
    batches = [pa.record_batch({"a": [1.0, 2.0], "t": t}) for t in ([10.0, 20.0], [30.0, 40.0])]
    fitted = fit_encoding(schema, batches)
    assert (fitted.target_mean, fitted.target_std) == pytest.approx(
        (25.0, np.std([10, 20, 30, 40]))
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1])
def test_a_constant_column_is_left_unscaled(value: float) -> None:
    schema = TableSchema((Column("a", "float"), Column("t", "float")), (), "t", ("a",))
    fitted = fit_encoding(schema, [pa.record_batch({"a": [value] * 7, "t": [1.0] * 7})]).features[0]
    assert fitted.std == 1.0


def test_a_column_of_nulls_has_mean_zero_and_std_one() -> None:
    schema = TableSchema((Column("a", "float"), Column("t", "float")), (), "t", ("a",))
    batch = pa.record_batch({"a": pa.nulls(2, pa.float64()), "t": [1.0, 2.0]})
    fitted = fit_encoding(schema, [batch]).features[0]
    assert (fitted.mean, fitted.std) == (0.0, 1.0)


def test_an_encoding_survives_json() -> None:
    encoding = fit_encoding(SCHEMA, train_batches())
    assert Encoding.from_json(encoding.to_json()) == encoding


@pytest.mark.parametrize("labels", [("no", "yes"), (1, 2), (False, True), ()])
def test_labels_keep_their_type_in_json(labels: tuple[str | int | bool, ...]) -> None:
    read = Encoding.from_json(Encoding((NUMBER,), "t", labels).to_json()).labels
    assert [(type(label), label) for label in read] == [(type(label), label) for label in labels]


TOKENIZER = train_tokenizer(["one two three"], vocab_size=270, max_tokens=8)
OF_TEXT = Encoding((Feature("body", "text", 8),), "t", ("no", "yes"), tokenizer=TOKENIZER)


def test_a_text_becomes_tokens() -> None:
    encoded = OF_TEXT.encode(pa.record_batch({"body": ["one two", "", None]}))
    assert (encoded.dtype, encoded.shape) == (np.int64, (3, 8))
    np.testing.assert_array_equal(encoded[:2], TOKENIZER.ids(["one two", ""]))
    assert OF_TEXT.input.name == "input_ids"


def test_errors_name_a_text_that_is_missing_or_none() -> None:
    rows = pa.record_batch({"body": ["", None, "NA"]})
    assert OF_TEXT.errors(OF_TEXT.encode(rows)) == [None, "body is missing", None]
    lists = pa.record_batch({"body": [["a"], ["b", "c"]]})
    assert OF_TEXT.errors(OF_TEXT.encode(lists)) == ["body is not text"] * 2


def test_a_client_sends_text_where_a_text_is_read() -> None:
    (name, sent), *_ = OF_TEXT.request(pa.table({"body": ["one", "a\x00"]})).items()
    assert (name, sent.tolist()) == ("text", [["one"], ["a\x00"]])
    plain = Encoding((NUMBER,), "t").request(pa.table({"a": [1.0]}))
    assert [(k, v.tolist()) for k, v in plain.items()] == [("features", [[1.0]])]


def test_an_encoding_of_text_comes_back_from_json() -> None:
    assert Encoding.from_json(OF_TEXT.to_json()) == OF_TEXT


def test_a_text_beside_other_columns_is_refused() -> None:
    columns = (Column("body", "text"), Column("a", "float"), Column("t", "category"))
    schema = TableSchema(columns, (), "t", ("body", "a"))
    with pytest.raises(InputError, match="either from one text column, or from columns"):
        text_column(schema)
    assert text_column(replace(schema, features=("body",))) == "body"
    assert text_column(replace(schema, features=("a",))) is None
