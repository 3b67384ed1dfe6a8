"""The dates that a nightly job has to make up for, and the scoring of one after the other."""

from collections.abc import Callable, Collection, Sequence
from datetime import date, timedelta
from typing import TypeVar

import deltalake

from millrace.models.common.errors import MillraceError
from millrace.serving.batch.commit import find_empty_partitions

T = TypeVar("T")


def dates_to_do(committed: Collection[str], last: str, days: int) -> list[str]:
    """Return the dates without a commit, the oldest first, and always the last.

    No date before the first commit counts as missed.

    Args:
        committed: the dates that have a commit, `YYYY-MM-DD`.
        last: the date that is due.
        days: how many days before it are made up for.
    """
    due = date.fromisoformat(last)
    first = min(committed, default=last)
    back = ((due - timedelta(days=n)).isoformat() for n in range(days, 0, -1))
    return [*(day for day in back if day > first and day not in committed), last]


def score_dates(
    dates: Sequence[str],
    score: Callable[[str], T],
    on_failure: Callable[[str, MillraceError], None],
) -> list[T]:
    """Return the result of scoring each date; a date that fails does not stop the later ones.

    Args:
        dates: in the order to score them.
        score: scores one.
        on_failure: called with a date and its error when it fails.

    Raises:
        MillraceError: the first failure, after all dates; with several dates, it names the failed.
    """
    results: list[T] = []
    failed: dict[str, MillraceError] = {}
    for each in dates:
        try:
            results.append(score(each))
        except MillraceError as error:
            failed[each] = error
            on_failure(each, error)
    if not failed:
        return results
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
    """Return the dates with a commit in a table of predictions; none if there is no table."""
    if not deltalake.DeltaTable.is_deltatable(table):
        return frozenset()
    opened = deltalake.DeltaTable(table)
    return find_empty_partitions(opened) | {each["date"] for each in opened.partitions()}
