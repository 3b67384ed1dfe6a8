from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.inference.features import Encoding, Feature
from millrace.tasks.kinds.graph.graph_predict import read_rows

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
        ('{"a": [1], "n": 1, "plan": "p01"}', ["the values of 'a'"]),
        ('{"a": null, "n": 1, "plan": "p01"}', ["row 2", "a is missing", "seen: null"]),
        (
            '{"a": 1, "n": 1, "plan": "gold"}',
            ["plan is unknown or missing", 'seen: "gold"', '"p09", … 2 more'],
        ),
    ],
)
def test_what_cannot_be_answered_is_told(tmp_path: Path, line: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        rows(tmp_path, GOOD, line)
    for word in words:
        assert word in str(caught.value)


def test_no_rows_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no rows"):
        rows(tmp_path, "")
