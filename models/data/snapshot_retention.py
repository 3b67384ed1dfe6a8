"""Removes the rows of old snapshots, and what killed ingestions left in a dataset's table.

The commits stay: which files, with which digests, a snapshot was made of is known for ever.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from deltalake import DeltaTable

from millrace.models.data.part_store import FOLDER as PARTS
from millrace.models.data.part_store import PartList
from millrace.models.data.snapshots import list_versions, read_removed, write_removed
from millrace.models.data.table_files import (
    Removed,
    delete_files,
    find_removable,
    list_data_files,
    list_files,
    named_files,
)


@dataclass(frozen=True)
class SnapshotPlan:
    """Which snapshots keep their rows.

    Attributes:
        kept: why, by version.
        removed: versions whose rows go, the oldest first.
    """

    kept: Mapping[int, str]
    removed: tuple[int, ...]


def plan_snapshots(
    versions: Collection[int], newest: int | None, needed: Mapping[int, str]
) -> SnapshotPlan:
    """Decide which snapshots keep their rows; the newest always does.

    Args:
        versions: versions with rows.
        newest: number of the newest snapshots to keep; None: all.
        needed: who needs a version, by version.
    """
    ordered = sorted(versions)
    recent = set(ordered if newest is None else ordered[-newest:])
    kept = {
        version: needed.get(version, "recent")
        for version in ordered
        if version in recent or version in needed
    }
    return SnapshotPlan(kept, tuple(version for version in ordered if version not in kept))


def find_snapshots(uri: str) -> tuple[int, ...]:
    """Return the snapshots of a table that have rows, the oldest first; none without a table."""
    if not DeltaTable.is_deltatable(uri):
        return ()
    gone = read_removed(uri)
    return tuple(version for version in list_versions(DeltaTable(uri)) if version not in gone)


def remove_snapshots(
    uri: str, plan: SnapshotPlan, left_before: datetime | None, *, dry_run: bool
) -> Removed:
    """Remove the rows of snapshots, and files that no version names.

    That the rows are gone is recorded first, so a reader never finds half of a snapshot. What a
    killed removal leaves is removed later, as files that no version names.

    Args:
        uri: URI of the dataset's table.
        plan: which snapshots go.
        left_before: files that no version names are removed if they are older; None: they stay.
        dry_run: whether only to count what would be removed.

    Raises:
        OSError: the table's folder cannot be written.
        DeltaError: the table cannot be read.
    """
    kept, dropped = named_files(uri, plan.kept), named_files(uri, plan.removed)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if plan.removed and not dry_run:
        write_removed(uri, dict.fromkeys(plan.removed, now))
    files = find_removable(list_data_files(uri), kept, dropped, left_before)
    parts = find_removable(list_files(uri, PARTS), _part_files(uri, plan.kept), (), left_before)
    return delete_files(uri, [*files, *parts], dry_run=dry_run)


def _part_files(uri: str, versions: Collection[int]) -> frozenset[str]:
    """Return the names of the files that store the parts of some snapshots."""
    commits = (each for each in DeltaTable(uri).history() if each["version"] in versions)
    lists = (PartList.of_commit(commit) for commit in commits)
    return frozenset(f"{name}.json" for each in lists if each is not None for name in each.ids)
