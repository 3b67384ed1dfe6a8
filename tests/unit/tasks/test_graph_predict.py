from pathlib import Path

import numpy as np
import pytest

from millrace.models.common.errors import InputError
from millrace.models.inference.features import Encoding, Feature
from millrace.tasks.kinds.graph.graph_predict import read_rows, split_request

PLANS = tuple(f"p{n:02}" for n in range(12))
ENCODING = Encoding(
    (
        Feature("a", "number"),
        Feature("n", "number", nullable=True),
        Feature("plan", "category", categories=PLANS),
    ),
    "t",
)
GOOD = '{"a": 1, "n": null, "plan": "p01"}'


def rows(folder: Path, *lines: str) -> list[list[float]]:
    (folder / "r.jsonl").write_text("\n".join(lines))
    return read_rows(ENCODING, str(folder / "r.jsonl"))["features"].tolist()  # type: ignore[no-any-return]


def test_rows_are_encoded(tmp_path: Path) -> None:
    assert rows(tmp_path, '{"plan": "p00", "n": 2, "a": 1.5, "x": []}', "", GOOD)[0] == [1.5, 2, 0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", ["row 2: [1]", "one JSON object per line"]),
        ("3", ["row 2: 3"]),
        ("{", ["row 2"]),
        (
            '{"a": 1, "n": 1, "plam": "p01"}',
            ["row 2 has no field 'plan'", "did you mean 'plan' by 'plam'?"],
        ),
        ('{"plan": "p01", "n": 1}', ["row 2 has no field 'a'", "next: add the field"]),
        (
            '{"a": [1], "n": 1, "plan": "p01"}',
            ["the values of 'a'", "row 2 has a list, [1]; row 1 has"],
        ),
        ('{"a": "1", "n": 1, "plan": "p01"}', ['row 2 has a text, "1"; row 1 has a number, 1']),
        ('{"a": true, "n": 1, "plan": "p01"}', ["row 2 has true or false, true; row 1 has"]),
        ('{"a": null, "n": 1, "plan": "p01"}', ["row 2", "a is missing", "seen: null"]),
        (
            '{"a": 1, "n": 1, "plan": "gold"}',
            ["plan is an unknown category", 'seen: "gold"', '"p09", … 2 more'],
        ),
    ],
)
def test_what_cannot_be_answered_is_told(tmp_path: Path, line: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        rows(tmp_path, GOOD, line)
    for word in words:
        assert word in str(caught.value)


def test_all_bad_rows_are_told(tmp_path: Path) -> None:
    bad = ['{"a": null, "n": 1, "plan": "p01"}', '{"a": 1, "n": 1, "plan": "gold"}']
    with pytest.raises(InputError, match="13 of 14 rows cannot be answered") as caught:
        rows(tmp_path, bad[0], GOOD, *[bad[1]] * 12)
    seen = caught.value.seen or ""
    assert seen.startswith(
        'row 1: a is missing, null; row 3: plan is an unknown category, "gold"; '
    )
    assert seen.endswith("; … 3 more")
    assert 'plan: "p00"' in (caught.value.valid or "")


def test_no_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        rows(tmp_path, "")


def test_the_first_row_of_another_type_is_named(tmp_path: Path) -> None:
    values = ("null", "true", "true", '"true"')
    lines = [GOOD.replace("null", value) for value in values]
    with pytest.raises(InputError, match="the values of 'n'") as caught:
        rows(tmp_path, *lines)
    assert caught.value.seen == 'row 4 has a text, "true"; row 2 has true or false, true'


def test_a_number_out_of_range_is_told_by_the_reader(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the values of 'a'") as caught:
        rows(tmp_path, GOOD, GOOD.replace("1,", f"{10**40},"))
    assert "row" not in (caught.value.seen or "row")


@pytest.mark.parametrize(
    ("name", "what"), [("none.jsonl", "does not exist"), (".", "cannot be read")]
)
def test_a_file_that_cannot_be_opened_is_told_with_its_path(
    tmp_path: Path, name: str, what: str
) -> None:
    with pytest.raises(InputError, match=f"the file of rows {what}") as caught:
        read_rows(ENCODING, str(tmp_path / name))
    assert str(tmp_path) in (caught.value.seen or "")
    assert "check the path" in (caught.value.hint or "")


def test_more_rows_than_the_server_takes_at_once_are_several_requests() -> None:
    request = {"features": np.arange(10).reshape(5, 2), "mask": np.arange(5)}
    parts = [
        {name: rows.tolist() for name, rows in each.items()} for each in split_request(request, 2)
    ]
    assert [each["mask"] for each in parts] == [[0, 1], [2, 3], [4]]
    assert parts[2]["features"] == [[8, 9]]
