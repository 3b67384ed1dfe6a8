"""Removes old partitions of a table of predictions."""

from datetime import date

import deltalake
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import TransientError

_ATTEMPTS = 20


def find_old_partitions(uri: str, before: date) -> tuple[str, ...]:
    """Return the dates of a table's partitions before a date, sorted; none without a table."""
    if not deltalake.DeltaTable.is_deltatable(uri):
        return ()
    found = {each["date"] for each in deltalake.DeltaTable(uri).partitions()}
    return tuple(sorted(each for each in found if each < before.isoformat()))


def drop_partitions(uri: str, before: date) -> None:
    """Remove the partitions before a date from a table, in one commit.

    Raises:
        TransientError: other commits came first, again and again.
    """
    for _ in range(_ATTEMPTS):
        try:
            deltalake.DeltaTable(uri).delete(f"date < '{before.isoformat()}'")
        except CommitFailedError as error:
            failure = error
        else:
            return
    raise TransientError(
        f"the partitions before {before} of {uri} were not removed",
        seen=failure,
        hint="run `millrace clean` again",
    ) from failure
