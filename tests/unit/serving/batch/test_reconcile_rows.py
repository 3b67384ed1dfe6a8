from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs

from millrace.models.common.errors import InputError, WorkError
from millrace.models.data.sources.find_files import File
from millrace.serving.batch.input.input_pieces import TextPiece
from millrace.serving.batch.job import DEAD, FILE_ROWS
from millrace.serving.batch.reconcile_rows import (
    DUPLICATE_KEY,
    ReconciledRows,
    drop_rows,
    reconcile_rows,
    require_few_dead,
)

FILE = File(fs.LocalFileSystem(), str(Path("in.csv")), 1, None)
PIECES = (TextPiece(FILE, 0), TextPiece(FILE, 1))
ONE = FILE_ROWS
"""The first row of the second file."""
COUNTED = {PIECES[0].name: 3, PIECES[1].name: 2}


def written(**rows: str) -> dict[str, pa.Table]:
    """Return data files by name; a row is its place and its key, like `0a 1b`."""
    return {
        name: pa.table(
            {
                "_row": pa.array([place(each[:-1]) for each in text.split()], pa.int64()),
                "_key": pa.array([each[-1] for each in text.split()], pa.string()),
            }
        )
        for name, text in rows.items()
    }


def place(text: str) -> int:
    return ONE + int(text[1:]) if text.startswith("+") else int(text)


def dead(*positions: int) -> pa.Table:
    rows = [{"_row": each, "_key": None, "reason": "bad", "row": "{}"} for each in positions]
    return pa.Table.from_pylist(rows, schema=DEAD)


def reconcile(
    files: dict[str, pa.Table], refused: pa.Table | None = None, *, unique_keys: bool = False
) -> ReconciledRows:
    refused = dead() if refused is None else refused
    return reconcile_rows(PIECES, COUNTED, files, refused, unique_keys=unique_keys)


def test_every_row_is_scored_or_dead() -> None:
    found = reconcile(written(f="0a 2c", g="+0d +1e"), dead(1))
    assert (found.rows, found.scored, found.dead["_row"].to_pylist()) == (5, 4, [1])
    assert not found.excluded


@pytest.mark.parametrize(
    ("files", "refused"),
    [
        (written(f="0a 2c", g="+0d +1e"), dead()),
        (written(f="0a 1b 2c", g="+0d"), dead()),
        (written(f="0a 1b 2c", g="+0d +1e +2f"), dead()),
        (written(f="0a 1b 2c", g="+0d +2f"), dead()),
        (written(f="0a 1b 2c", g="+0d +1e"), dead(7)),
        ({}, dead()),
    ],
)
def test_rows_that_are_lost_or_too_many_end_the_job(
    files: dict[str, pa.Table], refused: pa.Table
) -> None:
    with pytest.raises(WorkError, match="does not have every input row once"):
        reconcile(files, refused)


def test_a_row_that_two_files_have_is_taken_from_the_first() -> None:
    found = reconcile(written(f="0a 1b 2c +0d", g="+0d +1e 2c"))
    assert (found.scored, len(found.dead)) == (5, 0)
    assert {name: rows.tolist() for name, rows in found.excluded.items()} == {"g": [2, ONE]}


def test_a_row_that_was_refused_once_and_scored_later_is_scored() -> None:
    found = reconcile(written(f="0a 1b 2c", g="+0d +1e"), dead(1))
    assert (found.scored, len(found.dead)) == (5, 0)


def test_of_rows_with_one_key_the_first_in_the_input_is_kept() -> None:
    found = reconcile(written(f="2a +0b", g="0b 1a +1a"), unique_keys=True)
    assert found.scored == 2
    assert found.dead["_row"].to_pylist() == [2, ONE, ONE + 1]
    assert set(found.dead["reason"].to_pylist()) == {DUPLICATE_KEY}
    assert found.dead["row"].to_pylist()[0] == '{"_key": "a"}'
    assert {name: rows.tolist() for name, rows in found.excluded.items()} == {
        "f": [2, ONE],
        "g": [ONE + 1],
    }


def test_rows_without_keys_of_their_own_may_be_alike() -> None:
    assert reconcile(written(f="0a 1a 2a", g="+0a +1a")).scored == 5


@pytest.mark.parametrize("counted", [{}, {PIECES[0].name: 3}])
def test_a_piece_that_was_not_read_to_its_end_ends_the_job(counted: dict[str, int]) -> None:
    with pytest.raises(WorkError, match="not read to its end"):
        reconcile_rows(PIECES, counted, written(f="0a 1b 2c"), dead(), unique_keys=False)


def test_a_piece_with_other_rows_than_its_file_says_ends_the_job() -> None:
    pieces = (TextPiece(FILE, 0, rows=4), PIECES[1])
    with pytest.raises(WorkError, match="1 do not have the expected number of rows"):
        reconcile_rows(
            pieces, COUNTED, written(f="0a 1b 2c", g="+0d +1e"), dead(), unique_keys=False
        )


def test_an_input_without_rows_is_told() -> None:
    with pytest.raises(InputError, match="has no rows"):
        reconcile_rows(PIECES, dict.fromkeys(COUNTED, 0), {}, dead(), unique_keys=False)


@pytest.mark.parametrize(("most", "raises"), [(0.2, False), (0.19, True), (0, True), (1, False)])
def test_more_dead_rows_than_are_allowed_are_told(most: float, raises: bool) -> None:
    found = reconcile(written(f="0a 2c", g="+0d +1e"), dead(1))
    if not raises:
        require_few_dead(found, most)
        return
    with pytest.raises(InputError, match="1 of 5 rows cannot be scored") as caught:
        require_few_dead(found, most)
    assert "seen: bad (1, row 2)" in str(caught.value)


def refused_for(reasons: list[str], first: int = 0) -> ReconciledRows:
    """Return an input of 20 rows, of which the first ones are dead, one for each reason."""
    table = pa.table({"_row": range(first, first + len(reasons)), "reason": reasons})
    return ReconciledRows(20, 20 - len(reasons), table, {})


def seen_of(found: ReconciledRows) -> str:
    with pytest.raises(InputError, match=f"{len(found.dead)} of 20 rows") as caught:
        require_few_dead(found, 0.1)
    return caught.value.seen or ""


def test_reasons_beyond_the_commonest_are_counted_together() -> None:
    seen = seen_of(refused_for(["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d", "e"]))
    assert seen == (
        "a (4, e.g. rows 1, 2, 3); b (3, rows 5, 6, 7); c (2, rows 8, 9); other reasons (2)"
    )


def test_the_only_other_reason_is_told() -> None:
    seen = seen_of(refused_for(["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d"]))
    assert seen.endswith("; c (2, rows 8, 9); d (1, row 10)")


def test_a_row_of_several_files_is_named_with_its_file() -> None:
    seen = seen_of(refused_for(["a", "a", "b"], FILE_ROWS - 1))
    assert seen.endswith("b (1, row 2 of file 2)")


@pytest.mark.parametrize(
    ("reasons", "hints"),
    [
        ([DUPLICATE_KEY], (True, False)),
        (["x is missing"], (False, True)),
        ([DUPLICATE_KEY, "x is missing"], (True, True)),
    ],
)
def test_the_hint_fits_the_reasons(reasons: list[str], hints: tuple[bool, bool]) -> None:
    with pytest.raises(InputError) as caught:
        require_few_dead(refused_for(reasons), 0.0)
    hint = caught.value.hint or ""
    assert ("only the first is scored" in hint, "nullable" in hint) == hints


def test_rows_are_left_out_of_a_table() -> None:
    (table,) = written(f="0a 1b 2c").values()
    assert drop_rows(table, np.array([1]))["_key"].to_pylist() == ["a", "c"]
