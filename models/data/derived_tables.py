"""Tables that are made of a snapshot, such as its tokens: they stay as long as the snapshot's rows.

A commit of such a table names the digest of the snapshot's rows in its metadata.
"""

from collections.abc import Collection
from datetime import datetime

from deltalake import DeltaTable

from millrace.models.data.table_files import Removed, remove_replaced_files

SNAPSHOT_DIGEST = "millrace.snapshot_digest"


def remove_derived(uri: str, digests: Collection[str], now: datetime, *, dry_run: bool) -> Removed:
    """Remove files that were made of snapshots without rows; those of the newest version stay.

    Args:
        uri: URI of the derived table.
        digests: digests of the snapshots that have rows.
        now: the time.
        dry_run: whether only to count.

    Raises:
        OSError: the table's folder cannot be written.
        DeltaError: the table cannot be read.
    """
    if not DeltaTable.is_deltatable(uri):
        return Removed()
    kept = [
        commit["version"]
        for commit in DeltaTable(uri).history()
        if SNAPSHOT_DIGEST not in commit or commit[SNAPSHOT_DIGEST] in digests
    ]
    return remove_replaced_files(uri, now, kept=kept, dry_run=dry_run)
