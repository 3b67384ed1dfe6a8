"""Removes old partitions of a table of predictions."""

from datetime import date

import deltalake
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import TransientError
from millrace.models.data.table_commit import commit_with_retries


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
    old = f"date < '{before.isoformat()}'"
    try:
        commit_with_retries(lambda: deltalake.DeltaTable(uri).delete(old))
    except CommitFailedError as error:
        raise TransientError(
            f"the partitions before {before} of {uri} were not removed",
            seen=error,
            hint="run `millrace clean` again",
        ) from error
