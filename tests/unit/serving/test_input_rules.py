"""What a request may hold: the rules beside a served graph say what batch inference says."""

import json

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.data.schema import Column, TableSchema
from millrace.models.inference.features import Encoding, Feature, fit_encoding
from millrace.serving.triton.backends.onnxruntime.input_rules import REFUSED, InputRules

NAN, INF = float("nan"), float("inf")
COLUMNS = (
    Column("island", "category", categories=("Biscoe", "Dream", "Torgersen")),
    Column("sex", "category", categories=("female", "male"), nullable=True),
    Column("bill", "float", min=20.5, max=80.1),
    Column("mass", "int", nullable=True, min=1000),
    Column("tagged", "bool"),
    Column("pixels", "vector", width=2, min=0, max=16),
)
SCHEMA = TableSchema((*COLUMNS, Column("t", "float")), (), "t", tuple(c.name for c in COLUMNS))
ROW = [0, 1, 20.5, 3700, 1, 0, 16]
CASES = [
    (0, 7, "island is an unknown category"),
    (0, 0.5, "island is an unknown category"),
    (0, -1, "island is an unknown category"),
    (0, NAN, "island is missing"),
    (0, INF, "island is an unknown category"),
    (1, 2, "sex is an unknown category"),
    (2, NAN, "bill is missing"),
    (2, -INF, "bill is not a finite number"),
    (2, 20.4, "bill is below the minimum 20.5"),
    (2, 80.2, "bill is above the maximum 80.1"),
    (3, 3700.5, "mass is not a whole number"),
    (3, 999, "mass is below the minimum 1000"),
    (4, 2, "tagged is not true or false"),
    (4, 0.5, "tagged is not true or false"),
    (4, NAN, "tagged is missing"),
    (5, -1, "pixels is below the minimum 0"),
    (6, NAN, "pixels is missing"),
    (6, 17, "pixels is above the maximum 16"),
    (6, INF, "pixels is not 2 finite numbers"),
]


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    rows = {
        "island": pa.array(["Dream"]),
        "sex": pa.array(["male"]),
        "bill": pa.array([30.0]),
        "mass": pa.array([3700]),
        "tagged": pa.array([True]),
        "pixels": pa.array([[1.0, 2.0]]),
        "t": pa.array([1.0]),
    }
    return fit_encoding(SCHEMA, [pa.record_batch(rows)])


@pytest.fixture(scope="module")
def rules(encoding: Encoding) -> InputRules:
    return InputRules(str(encoding.rules()))


def changed(place: int, value: float) -> np.ndarray:
    row = np.array([ROW], np.float32)
    row[0, place] = value
    return row


def test_a_row_that_there_can_be_is_answered(encoding: Encoding, rules: InputRules) -> None:
    for row in (np.array([ROW], np.float32), changed(1, NAN), changed(3, NAN), changed(2, 80.1)):
        assert encoding.errors(row) == [None]
        assert rules.find_faults([row]) == {}


@pytest.mark.parametrize(("place", "value", "reason"), CASES)
def test_online_and_batch_refuse_by_the_same_words(
    encoding: Encoding, rules: InputRules, place: int, value: float, reason: str
) -> None:
    row = changed(place, value)
    assert encoding.errors(row) == [reason]
    assert rules.find_faults([row]) == {0: f"row 1 {REFUSED}{reason}; seen: {np.float32(value):g}"}


def test_of_chance_rows_both_refuse_the_same_by_the_same_words(
    encoding: Encoding, rules: InputRules
) -> None:
    chance = np.random.default_rng(2)
    values = np.float32([NAN, INF, -INF, 0, 1, 2, 0.5, -1, 16, 17, 30, 80.1, 1000, 3700.5, 3e38])
    rows = np.where(
        chance.random((3000, len(ROW))) < 0.8,
        np.float32(ROW),
        chance.choice(values, (3000, len(ROW))),
    ).astype(np.float32)
    found = rules.find_faults([row[None] for row in rows])
    expected = encoding.errors(rows)
    assert 100 < len(found) < 2900
    for place, reason in enumerate(expected):
        said = found.get(place)
        assert (said is None) == (reason is None)
        assert reason is None or f"{REFUSED}{reason}; seen:" in str(said)


def test_of_requests_that_are_answered_together_only_the_bad_are_refused(rules: InputRules) -> None:
    good = np.array([ROW, ROW], np.float32)
    bad = np.concatenate([good, changed(0, 3)])
    found = rules.find_faults([good, bad, good])
    assert list(found) == [1]
    assert found[1].startswith("row 3 cannot be answered: island is an unknown category")


def test_limits_are_those_of_float32() -> None:
    """0.1 is more than 0.1 when it is rounded to what a request holds."""
    encoding = Encoding((Feature("x", "number", min=0.1, max=0.1),), "t")
    row = np.float32([[0.1]])
    assert encoding.errors(row) == [None]
    assert InputRules(str(encoding.rules())).find_faults([row]) == {}


def test_an_encoding_of_an_earlier_millrace_has_no_limits_but_its_categories() -> None:
    encoding = Encoding((Feature("x", "number"), Feature("c", "category", 1, ("a", "b"))), "t")
    values = json.loads(encoding.to_json())
    for feature in values["features"]:
        for name in ("values", "min", "max"):
            del feature[name]
    read = Encoding.from_json(json.dumps(values))
    assert read.errors(np.float32([[0.5, 1], [1, 2]])) == [None, "c is an unknown category"]


def test_a_request_of_another_width_is_left_to_onnx_runtime(rules: InputRules) -> None:
    assert rules.find_faults([np.zeros((1, 3), np.float32)]) == {}
