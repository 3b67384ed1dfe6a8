"""Removes the rows of old snapshots, and what killed ingestions left in a dataset's table.

The commits and the lists of files stay: which files, with which digests, a snapshot was made of is
known for ever.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import PurePosixPath

from deltalake import DeltaTable

from millrace.models.common.errors import TransientError
from millrace.models.data.folder import Folder
from millrace.models.data.lease import hold_lease
from millrace.models.data.part_store import FOLDER as PARTS
from millrace.models.data.part_store import keep_sources, part_files
from millrace.models.data.snapshot_use import is_ingesting
from millrace.models.data.snapshots import RETENTION, list_versions, read_removed, write_removed
from millrace.models.data.table_files import (
    DataFile,
    Removed,
    delete_files,
    find_removable,
    list_data_files,
    list_files,
    named_files,
)

LEASE = "clean"
"""Name of the lease that one `millrace clean` holds on a dataset."""


def find_snapshots(uri: str) -> tuple[int, ...]:
    """Return the snapshots of a table that have rows, the oldest first; none without a table."""
    if not DeltaTable.is_deltatable(uri):
        return ()
    gone = read_removed(uri)
    return tuple(version for version in list_versions(DeltaTable(uri)) if version not in gone)


def remove_snapshots(
    uri: str, removed: Collection[int], left_before: datetime | None, *, dry_run: bool
) -> Removed:
    """Remove the rows of snapshots, and files that no version names.

    That the rows are gone is recorded first, so who opens a removed snapshot later gets an error
    that says so. What a killed removal leaves is removed later, as files that no version names.

    Args:
        uri: URI of the dataset's table.
        removed: versions of the snapshots that go.
        left_before: files that no version names are removed if they are older, unless an ingestion
            is running; None: they stay.
        dry_run: whether only to count what would be removed.

    Raises:
        TransientError: another `millrace clean` removes snapshots of this dataset.
        OSError: the table's folder cannot be written.
        DeltaError: the table cannot be read.
    """
    if dry_run:
        return delete_files(uri, _find_files(uri, removed, left_before), dry_run=True)
    with _alone(uri):
        files = _find_files(uri, removed, left_before)
        if removed:
            now = datetime.now(UTC).isoformat(timespec="seconds")
            write_removed(uri, dict.fromkeys(removed, now))
        keep_sources(uri, [PurePosixPath(file.path).name for file in files])
        return delete_files(uri, files)


def _find_files(uri: str, removed: Collection[int], left_before: datetime | None) -> list[DataFile]:
    """Return the files of removed snapshots that no other snapshot needs, and old unnamed files."""
    if is_ingesting(uri):  # its files may be older than its commit
        left_before = None
    # Before the log, or a file of a new commit would seem to be unnamed.
    present, parts = list_data_files(uri), list_files(uri, PARTS)
    kept, dropped = _split_commits(uri, removed)
    data = find_removable(present, named_files(uri, kept), named_files(uri, dropped), left_before)
    return data + find_removable(parts, _part_files(uri, kept), (), left_before)


def _split_commits(uri: str, removed: Collection[int]) -> tuple[set[int], set[int]]:
    """Return which versions of a table keep their files, and which lose them now.

    A commit of another program, such as one that compacts files, goes with the snapshot before it.

    Args:
        uri: URI of the dataset's table.
        removed: versions of the snapshots that go.
    """
    table = DeltaTable(uri)
    snapshots, gone = list_versions(table), read_removed(uri).keys() - removed
    kept, dropped = set[int](), set[int]()
    for version in sorted(commit["version"] for commit in table.history()):
        before = bisect_right(snapshots, version)
        snapshot = snapshots[before - 1] if before else None
        if snapshot in removed:
            dropped.add(version)
        elif snapshot not in gone:
            kept.add(version)
    return kept, dropped


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Keep other `millrace clean`s from removing snapshots of a dataset while the block runs."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hold_lease(Folder(f"{uri}/{RETENTION}"), LEASE))
        except TransientError as error:
            raise TransientError(
                "another `millrace clean` removes snapshots of the same dataset",
                seen=error.seen,
                hint="run `millrace clean` again when the other one has ended",
            ) from error
        yield


def _part_files(uri: str, versions: Collection[int]) -> frozenset[str]:
    """Return the names of the files that store the parts of some snapshots."""
    return part_files(
        uri, (each for each in DeltaTable(uri).history() if each["version"] in versions)
    )
