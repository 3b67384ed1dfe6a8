"""Erases rows by their keys from all snapshots of a dataset.

The newest snapshot is replaced by one without the rows. Files of earlier snapshots lose the rows in
place; what their commits say about them, such as the number of rows, stays.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import TransientError
from millrace.models.data.column_statistics import ColumnStatistics, merge, statistics_of
from millrace.models.data.erase_rows import (
    CleanFile,
    Erasure,
    actions_of,
    find_files,
    named_sizes,
    scrub_files,
    write_clean,
)
from millrace.models.data.part_store import PartList, parts_of_newest, stored_parts
from millrace.models.data.parts import Part, combine
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshot_use import find_held_versions, is_ingesting
from millrace.models.data.snapshots import Snapshot, metadata_of, newest_snapshot
from millrace.models.data.split import Digest, hash_rows
from millrace.models.data.table_commit import filesystem_of

Wait = Callable[[str], None]
"""Waits for a while; it is given what is waited for."""


def forget_in_snapshots(name: str, uri: str, erasure: Erasure, wait: Wait) -> int:
    """Erase rows from all snapshots of a dataset, and return how many the newest had.

    Args:
        name: the dataset's name.
        uri: URI of its table.
        erasure: the rows.
        wait: called again and again while an ingestion, or a job that reads a snapshot, runs.

    Raises:
        TransientError: another commit came first.
        OSError: the table's folder cannot be written.
    """
    if not DeltaTable.is_deltatable(uri):
        return 0
    while is_ingesting(uri):
        wait("an ingestion of the dataset")
    table = DeltaTable(uri)
    newest = newest_snapshot(name, table, uri)
    if newest is None:
        return 0
    named = named_sizes(table)
    found = {path: count for path, count in find_files(uri, erasure).items() if path in named}
    if found:
        _commit_without(table, newest, found, erasure)
    last = DeltaTable(uri).version()
    while any(version < last for version in find_held_versions(uri)):
        wait("a job that reads an earlier snapshot")
    scrub_files(uri, erasure)
    return sum(found.values())


def _commit_without(
    table: DeltaTable, newest: Snapshot, found: dict[str, int], erasure: Erasure
) -> None:
    """Publish a snapshot like the newest without rows of some files."""
    uri, named = newest.uri, named_sizes(table)
    filesystem, root = filesystem_of(uri)
    listed, parts = _parts_of(table, newest)
    private = Erasure(erasure.columns, erasure.find, (*erasure.private, *newest.schema.key))
    clean = write_clean(uri, found, private, {path: {} for path in found})
    by_old = {each.old: each for each in clean}
    changed = [_without(part, by_old, newest, listed.schema) for part in parts]
    new = [part for part, old in zip(changed, parts, strict=True) if part is not old]
    combined = combine(changed)
    snapshot = replace(
        newest,
        digest=combined.digest.hexdigest(),
        rows=combined.digest.rows,
        statistics=combined.statistics,
    )
    ids = tuple(part.id for part in combined.parts)
    metadata = {**metadata_of(snapshot), **replace(listed, ids=ids).metadata()}
    try:
        with stored_parts(uri, new):
            table.create_write_transaction(
                actions_of(clean, named),
                "append",
                table.schema(),
                commit_properties=CommitProperties(metadata, max_commit_retries=0),
            )
    except CommitFailedError as error:
        for each in clean:
            if each.name is not None:
                filesystem.delete_file(f"{root}{each.name}")
        raise TransientError(
            f"another command changed the dataset {newest.name!r} first",
            seen=error,
            hint="run the command again; nothing was erased from the snapshots",
        ) from error


def _parts_of(table: DeltaTable, newest: Snapshot) -> tuple[PartList, tuple[Part, ...]]:
    """Return the parts of the newest snapshot; one part of all files if they are not known."""
    known = parts_of_newest(table, newest.uri)
    if known is not None:
        return known
    files = tuple(pa.table(table.get_add_actions())["path"].to_pylist())
    digest = Digest.from_hex(newest.digest)
    whole = Part(
        *(uuid4().hex, (), files, digest, newest.statistics, newest.quarantined, newest.reasons)
    )
    return PartList((whole.id,), "", newest.schema), (whole,)


def _without(
    part: Part, clean: dict[str, CleanFile], newest: Snapshot, schema: TableSchema
) -> Part:
    """Return a part with clean files in place of others; the part itself if it has none of them."""
    if not clean.keys() & set(part.files):
        return part
    names = [clean[file].name if file in clean else file for file in part.files]
    files = tuple(name for name in names if name is not None)
    digest, statistics = _count_rows(newest.uri, files, schema)
    return replace(part, id=uuid4().hex, files=files, digest=digest, statistics=statistics)


def _count_rows(
    uri: str, files: Sequence[str], schema: TableSchema
) -> tuple[Digest, dict[str, ColumnStatistics]]:
    """Return digest and statistics of the rows of some of a table's files."""
    digest, statistics = Digest(), dict[str, ColumnStatistics]()
    names = [column.name for column in schema.columns]
    for batch in _batches(uri, files, names):
        digest.update(hash_rows(batch))
        statistics = merge(statistics, statistics_of(batch, schema))
    return digest, statistics


def _batches(uri: str, files: Sequence[str], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    filesystem, root = filesystem_of(uri)
    for file in files:
        with filesystem.open_input_file(f"{root}{file}") as opened:
            for batch in pq.ParquetFile(opened).iter_batches(columns=list(names)):
                yield batch.select(list(names))
