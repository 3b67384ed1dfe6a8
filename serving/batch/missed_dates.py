"""Which dates a nightly job has to make up for, and doing them in turn."""

from collections.abc import Callable, Collection, Sequence
from datetime import date, timedelta
from typing import TypeVar

import deltalake

from millrace.models.common.errors import MillraceError
from millrace.serving.batch.commit import empty

T = TypeVar("T")


def dates_to_do(committed: Collection[str], last: str, days: int) -> list[str]:
    """Return the dates without a commit, the oldest first, and the last in any case.

    Nothing before the first commit was ever missed.

    Args:
        committed: the dates that have one, `YYYY-MM-DD`.
        last: the date that is due.
        days: how many days back from there are made up for.
    """
    due = date.fromisoformat(last)
    first = min(committed, default=last)
    back = ((due - timedelta(days=n)).isoformat() for n in range(days, 0, -1))
    return [*(day for day in back if day > first and day not in committed), last]


def in_turn(
    dates: Sequence[str],
    score: Callable[[str], T],
    on_failure: Callable[[str, MillraceError], None],
) -> list[T]:
    """Return what scoring each date came to; one that fails does not hold up those after it.

    Args:
        dates: in the order to do them.
        score: does one.
        on_failure: called with a date and its error, when it fails.

    Raises:
        MillraceError: the first failure, after all dates; of several dates, it names those.
    """
    done: list[T] = []
    failed: dict[str, MillraceError] = {}
    for each in dates:
        try:
            done.append(score(each))
        except MillraceError as error:
            failed[each] = error
            on_failure(each, error)
    if not failed:
        return done
    first = next(iter(failed.values()))
    if len(dates) == 1:
        raise first
    raise type(first)(
        f"{len(failed)} of {len(dates)} dates not scored, {', '.join(failed)}: {first.what}",
        seen=first.seen,
        valid=first.valid,
        hint=first.hint,
    ) from first


def committed_dates(table: str) -> frozenset[str]:
    """Return the dates that were committed to a table of predictions; none where there is none."""
    if not deltalake.DeltaTable.is_deltatable(table):
        return frozenset()
    opened = deltalake.DeltaTable(table)
    return empty(opened) | {each["date"] for each in opened.partitions()}
