"""Which dates a nightly job has to make up for."""

from collections.abc import Collection
from datetime import date, timedelta

import deltalake

from serving.batch.partition import empty


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


def committed_dates(table: str) -> frozenset[str]:
    """Return the dates that were committed to a table of predictions; none where there is none."""
    if not deltalake.DeltaTable.is_deltatable(table):
        return frozenset()
    opened = deltalake.DeltaTable(table)
    return empty(opened) | {each["date"] for each in opened.partitions()}
