"""Removes old partitions of a table of predictions, and files that newer commits replaced."""

from datetime import date, datetime, timedelta

import deltalake
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import TransientError
from millrace.models.data.table_files import (
    Removed,
    delete_files,
    find_removable,
    list_data_files,
    named_files,
)

SUPERSEDED = timedelta(days=7)
"""How long files stay that a commit replaced, for readers of the earlier version; as in Delta's own
vacuum."""
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


def remove_replaced_files(
    uri: str, now: datetime, left_before: datetime | None, *, dry_run: bool
) -> Removed:
    """Delete files that no commit of the last `SUPERSEDED` names.

    Args:
        uri: URI of the table.
        now: the time.
        left_before: a file that is younger stays, because a running job may be about to commit it;
            None: no file is removed.
        dry_run: whether only to count.

    Raises:
        OSError: the table's folder cannot be written.
    """
    if left_before is None or not deltalake.DeltaTable.is_deltatable(uri):
        return Removed()
    present = list_data_files(uri)  # before the log, or a file of a new commit would seem unnamed
    kept = named_files(uri, _recent_versions(uri, now - SUPERSEDED))
    return delete_files(uri, find_removable(present, kept, (), left_before), dry_run=dry_run)


def _recent_versions(uri: str, since: datetime) -> list[int]:
    """Return the versions that were the newest at some time since."""
    recent: list[int] = []
    for commit in deltalake.DeltaTable(uri).history():  # the newest first
        recent.append(commit["version"])
        if commit["timestamp"] < since.timestamp() * 1000:
            break
    return recent
