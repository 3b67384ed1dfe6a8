"""The dates of a batch job: the one that is asked for, and the missed ones before it."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from millrace.models.common.errors import InputError


def parse_date(date: str | None) -> str:
    """Return the date of the partition, yesterday in UTC for None.

    Raises:
        InputError: the date is not a calendar day, written YYYY-MM-DD.
    """
    if date is None:
        return (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    try:
        if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
            raise ValueError(date)
        return datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC).date().isoformat()
    except ValueError as error:
        raise InputError("the date is not valid", seen=date, valid="YYYY-MM-DD") from error


def dates_to_do(committed: Collection[str], last: str, days: int) -> list[str]:
    """Return the dates to score: the dates without a commit, the oldest first, and always `last`.

    No date before the first commit counts as missed.

    Args:
        committed: the dates that have a commit, `YYYY-MM-DD`.
        last: the date that is due.
        days: the number of days before `last` to look back.
    """
    due = datetime.fromisoformat(last).date()
    first = min(committed, default=last)
    back = ((due - timedelta(days=n)).isoformat() for n in range(days, 0, -1))
    return [*(day for day in back if day > first and day not in committed), last]
