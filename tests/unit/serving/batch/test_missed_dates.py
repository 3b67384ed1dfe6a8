from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from millrace.flows.score_batch import score_dates
from millrace.flows.score_dates import dates_to_do
from millrace.models.common.errors import InputError, MillraceError, WorkError
from millrace.serving.batch.commit import committed_dates

DUE = "2026-03-02"


@pytest.mark.parametrize(
    ("committed", "days", "to_do"),
    [
        ([], 7, [DUE]),
        (["2026-03-01"], 7, [DUE]),
        (["2026-02-26", "2026-02-28"], 7, ["2026-02-27", "2026-03-01", DUE]),
        (["2026-01-01"], 2, ["2026-02-28", "2026-03-01", DUE]),
        (["2026-01-01"], 0, [DUE]),
        (["2026-03-01", DUE], 7, [DUE]),
        (["2026-03-05"], 7, [DUE]),
    ],
)
def test_missed_dates_are_made_up_for_the_oldest_first(
    committed: list[str], days: int, to_do: list[str]
) -> None:
    assert dates_to_do(committed, DUE, days) == to_do


def test_the_dates_of_a_table_are_its_partitions(tmp_path: Path) -> None:
    assert committed_dates(str(tmp_path / "t")) == frozenset()
    rows = pa.table({"date": ["2026-03-01", "2026-03-01", DUE], "x": [1, 2, 3]})
    deltalake.write_deltalake(str(tmp_path / "t"), rows, partition_by=["date"])
    assert committed_dates(str(tmp_path / "t")) == {"2026-03-01", DUE}


FIRST = "2026-03-01"
WRONG = InputError("the input has no rows", seen="a.csv", valid="one row", hint="name another")


def score_but(wrong: dict[str, MillraceError], tried: list[str]) -> Callable[[str], str]:
    """Return what scores a date, but for those with an error, and notes what it was asked."""

    def score(each: str) -> str:
        tried.append(each)
        if each in wrong:
            raise wrong[each]
        return f"scored {each}"

    return score


def nothing(each: str, error: MillraceError) -> None:
    pytest.fail(f"{each}: {error}")


def test_dates_are_scored_in_turn() -> None:
    done = score_dates([FIRST, DUE], score_but({}, []), nothing)
    assert done == [f"scored {FIRST}", f"scored {DUE}"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (
            {FIRST: WRONG},
            f"1 of 2 dates were not scored ({FIRST}); the first error: the input has no rows",
        ),
        (
            {DUE: WRONG},
            f"1 of 2 dates were not scored ({DUE}); the first error: the input has no rows",
        ),
        (
            {FIRST: WRONG, DUE: WorkError("an actor died")},
            f"2 of 2 dates were not scored ({FIRST}, {DUE}); the first error: "
            "the input has no rows",
        ),
    ],
)
def test_a_date_that_fails_holds_up_none_and_is_named(
    wrong: dict[str, MillraceError], what: str
) -> None:
    tried: list[str] = []
    told: dict[str, MillraceError] = {}
    with pytest.raises(InputError) as raised:
        score_dates([FIRST, DUE], score_but(wrong, tried), told.__setitem__)
    assert raised.value.as_dict() == WRONG.as_dict() | {"what": what}
    assert tried == [FIRST, DUE]
    assert told == wrong


def test_of_one_date_the_error_is_as_it_was() -> None:
    told: dict[str, MillraceError] = {}
    with pytest.raises(InputError) as raised:
        score_dates([DUE], score_but({DUE: WRONG}, []), told.__setitem__)
    assert raised.value is WRONG
    assert told == {DUE: WRONG}
