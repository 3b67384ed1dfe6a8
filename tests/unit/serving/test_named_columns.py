"""The step that takes columns by their names reads and refuses what batch inference does."""

import importlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.config.dataset_spec import NULL_VALUES
from millrace.models.data.schema import Column, TableSchema
from millrace.models.inference.features import Encoding, fit_encoding
from millrace.models.inference.named_columns import columns_json, row_schema, rows_input
from millrace.models.inference.tokenizer import TextTokenizer
from millrace.serving.triton import backend_directory

COLUMNS = (
    Column("island", "category", categories=("Biscoe", "Dream", "NA")),
    Column("sex", "category", categories=("female", "male"), nullable=True),
    Column("year", "category", values="int", categories=(2007, 2008, 2009)),
    Column("tagged", "category", values="bool", categories=(False, True)),
    Column("bill", "float", min=20.5, max=80.1),
    Column("mass", "int", nullable=True, min=1000),
    Column("adult", "bool"),
    Column("seen", "bool", nullable=True),
    Column("pixels", "vector", width=2, min=0, max=16, nullable=True),
)
SCHEMA = TableSchema((*COLUMNS, Column("t", "float")), (), "t", tuple(c.name for c in COLUMNS))
ROW: dict[str, Any] = {
    "island": "Dream",
    "sex": "male",
    "year": 2008,
    "tagged": True,
    "bill": 30.0,
    "mass": 3700,
    "adult": True,
    "seen": False,
    "pixels": [1.0, 2.0],
}
CELLS: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 3, 2008, 2008.0, 2008.5, 1e300, 1e-300, 1.5, -0.0, 1000),
    *("", " ", "NA", " NA ", "null", "nan", "NaN", "Dream", "dream", " Dream", "male", "2008"),
    *("2008.0", " 2008 ", "+2008", "2e3", "0x7d8", "1_000", "true", "True", "YES", "no", "f", "-"),
    *("inf", "Infinity", "-inf", "1.5", ".5", "5.", "1,5", "٣", "1e400", "1" * 40, "Torgersen"),
    *(
        [],
        [1.0, 2.0],
        [1, 2],
        [1.0],
        [None, 2.0],
        [1.0, 17.0],
        [True, False],
        ["a", "b"],
        [[1], [2]],
    ),
    *({}, {"a": 1}, 2**53 + 1, -(2**62), 30.0, 80.1, 80.2, 20.4, 16777217),
]


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    rows = {name: pa.array([value]) for name, value in {**ROW, "t": 1.0}.items()}
    return fit_encoding(SCHEMA, [pa.record_batch(rows)])


@pytest.fixture(scope="module")
def backend() -> Iterator[ModuleType]:
    """The module `named_rows`, with its siblings as Triton's stub finds them."""
    folders = [str(backend_directory.BACKENDS / name) for name in ("named_columns", "onnxruntime")]
    sys.path[:0] = folders
    names = ("named_rows", "cell_values", "input_rules")
    try:
        yield importlib.import_module("named_rows")
    finally:
        for folder in folders:
            sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def named(backend: ModuleType, encoding: Encoding) -> Any:
    return backend.NamedRows(columns_json(encoding))


@pytest.mark.parametrize("words", [(), ("-999", "2008"), ("0", "1.0", "true"), ("much", "2e3")])
def test_words_for_null_are_those_of_the_dataset(
    words: tuple[str, ...], backend: ModuleType, encoding: Encoding
) -> None:
    own = replace(encoding, null_values=words)
    named = backend.NamedRows(columns_json(own))
    cells = (*CELLS, "-999", " -999 ", "0", " 0", "1.0", " 1.0", "much", " much ")
    for column in ROW:
        for cell in cells:
            row = {**ROW, column: cell}
            expected = by_batch(own, row)
            if expected is not None:
                encoded, fault = by_name(named, backend, row)
                assert fault == expected[1], (column, cell)
                if fault is None:
                    np.testing.assert_array_equal(encoded, expected[0], err_msg=str(row))


def by_batch(encoding: Encoding, row: dict[str, Any]) -> tuple[Any, str | None] | None:
    """Return the encoded row and its fault; None if Arrow has no such column."""
    try:
        table = pa.table({name: pa.array([cell]) for name, cell in row.items()})
    except (pa.ArrowException, OverflowError):
        return None
    encoded = encoding.encode(table)
    return encoded, encoding.errors(encoded)[0]


def by_name(named: Any, backend: ModuleType, row: dict[str, Any]) -> tuple[Any, str | None]:
    try:
        return named.read_json([json.dumps(row).encode()]), None
    except backend.RowsRefused as error:
        text = str(error).removeprefix("row 1 cannot be answered: ")
        return None, text.partition("; seen: ")[0]


@pytest.mark.parametrize("column", [each.name for each in COLUMNS])
def test_every_kind_of_cell_is_read_as_in_batch(
    column: str, named: Any, backend: ModuleType, encoding: Encoding
) -> None:
    for cell in CELLS:
        row = {**ROW, column: cell}
        expected = by_batch(encoding, row)
        if expected is None:
            continue
        encoded, fault = by_name(named, backend, row)
        assert fault == expected[1], (cell, expected)
        if fault is None:
            np.testing.assert_array_equal(encoded, expected[0], err_msg=str(cell))


def test_random_rows_are_read_as_in_batch(
    named: Any, backend: ModuleType, encoding: Encoding
) -> None:
    chance = random.Random(5)
    good = bad = 0
    while good < 300 or bad < 2000:
        changed = chance.sample(list(ROW), chance.choice((0, 1, 1, 2)))
        row = {**ROW, **{name: chance.choice(CELLS) for name in changed}}
        expected = by_batch(encoding, row)
        if expected is None:
            continue
        encoded, fault = by_name(named, backend, row)
        assert fault == expected[1], row
        if fault is None:
            np.testing.assert_array_equal(encoded, expected[0])
        good, bad = good + (fault is None), bad + (fault is not None)


@pytest.mark.parametrize("words", [NULL_VALUES, ()])
def test_tensors_are_read_as_json_is(
    words: tuple[str, ...], backend: ModuleType, encoding: Encoding
) -> None:
    named = backend.NamedRows(columns_json(replace(encoding, null_values=words)))
    tensors = {
        "island": np.array([[b"Dream"]], object),
        "sex": np.array([[b""]], object),
        "year": np.array([[2008]], np.int64),
        "tagged": np.array([[True]]),
        "bill": np.array([[30.0]]),
        "mass": np.array([[np.nan]]),
        "adult": np.array([[True]]),
        "seen": np.array([[b"true"]], object),
        "pixels": np.array([[1.0, 2.0]]),
    }
    row = {**ROW, "sex": None, "mass": None, "seen": True}
    expected = named.read_json([json.dumps(row).encode()])
    np.testing.assert_array_equal(named.read_tensors(tensors), expected)


def test_all_bad_rows_are_named_with_what_was_seen(named: Any, backend: ModuleType) -> None:
    rows = [ROW, {**ROW, "island": "Narnia"}, {**ROW, "bill": None}]
    with pytest.raises(backend.RowsRefused) as error:
        named.read_json([json.dumps(row).encode() for row in rows])
    assert str(error.value) == (
        '2 of 3 rows cannot be answered: row 2: island is an unknown category, "Narnia"; '
        "row 3: bill is missing, null"
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"[1]", "row 1 is not an object of columns; seen: [1]"),
        (b"{", "row 1 is not JSON"),
        (b'{"bill": NaN}', "NaN is not JSON; write null"),
        (b"\xff", "row 1 is not JSON"),
        (b"[" * 5_000, "row 1 is not JSON"),
        (json.dumps({"Island": "x"}).encode(), "did you mean 'island' by 'Island'?"),
        (b'{"x": "' + b"a" * 2**20 + b'"}', "row 1 is longer than 1,048,576 bytes"),
        (json.dumps({**ROW, "island": "\ud800"}).encode(), '"\\ud800"'),
        (b"{}", "row 1 has no column 'island'; add it"),
    ],
)
def test_what_is_no_row_is_refused(row: bytes, words: str, named: Any, backend: ModuleType) -> None:
    with pytest.raises(backend.RowsRefused) as error:
        named.read_json([row])
    assert words in str(error.value)


def test_a_text_is_taken_by_its_name(backend: ModuleType) -> None:
    tokenizer = TextTokenizer("{}", 16, 0, 100)
    schema = TableSchema(
        (Column("code", "text"), Column("t", "category", categories=("a", "b"))), (), "t", ("code",)
    )
    rows = pa.record_batch({"code": pa.array(["x"]), "t": pa.array(["a"])})
    named = backend.NamedRows(columns_json(fit_encoding(schema, [rows], tokenizer)))
    assert named.input == "text"
    assert named.read_json([b'{"code": "def f"}']).tolist() == [[b"def f"]]
    assert named.read_json([b'{"code": 5}', b'{"code": true}']).tolist() == [[b"5"], [b"true"]]
    for cell, fault in (("null", "code is missing"), ("[3]", "code is not text")):
        with pytest.raises(backend.RowsRefused, match=fault):
            named.read_json([f'{{"code": {cell}}}'.encode()])


def test_the_input_of_rows_has_a_name_that_no_column_has() -> None:
    assert rows_input(["a", "rows"]) == "rows_"


def test_a_row_has_a_schema(encoding: Encoding) -> None:
    schema = row_schema(json.loads(columns_json(encoding))["columns"])["properties"]
    assert schema["sex"] == {"type": ["string", "null"], "enum": ["female", "male", None]}
    assert schema["year"] == {"type": "integer", "enum": [2007, 2008, 2009]}
    assert schema["mass"] == {"type": ["integer", "null"], "minimum": 1000}
    assert schema["bill"] == {"type": "number", "minimum": 20.5, "maximum": 80.1}
    assert schema["pixels"]["minItems"] == 2


def test_the_folder_of_the_backend_has_what_it_imports() -> None:
    shared = [file.name for name, file in backend_directory._shared_files() if "named" in name]
    assert shared == ["input_rules.py"]
    assert Path(backend_directory.BACKENDS / "named_columns/model.py").exists()
