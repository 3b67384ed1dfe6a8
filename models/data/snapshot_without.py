"""Publishes a snapshot like the newest one of a dataset, without some rows."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from millrace.models.common.errors import InputError, WorkError
from millrace.models.data.column_statistics import ColumnStatistics, merge, statistics_of
from millrace.models.data.erase_rows import (
    CleanFile,
    actions_of,
    delete_clean,
    named_sizes,
    write_clean,
)
from millrace.models.data.erasure import Erasure
from millrace.models.data.part_store import PartList, parts_of_newest, stored_parts
from millrace.models.data.parts import Part, combine, files_of
from millrace.models.data.repeated_keys import recount
from millrace.models.data.schema import TableSchema
from millrace.models.data.scrub_files import Found
from millrace.models.data.snapshots import Snapshot, metadata_of, newest_snapshot
from millrace.models.data.split import Digest, hash_rows
from millrace.models.data.table_commit import filesystem_of


def publish_without(name: str, uri: str, found: Found, erasure: Erasure) -> int | None:
    """Publish a snapshot without rows, if the newest has some of them, and return their number.

    Rows that another program has added to the table are no part of a snapshot, and go too.

    Args:
        name: the dataset's name.
        uri: URI of its table.
        found: the files with the rows.
        erasure: the rows.

    Returns:
        None if another commit came first, so that nothing was published.

    Raises:
        InputError: no row would be left.
        WorkError: a file of the newest snapshot cannot be read, so its rows cannot be counted.
    """
    table = DeltaTable(uri) if DeltaTable.is_deltatable(uri) else None
    newest = newest_snapshot(name, table, uri) if table else None
    if table is None or newest is None:
        return 0
    named = named_sizes(table)
    counts = found.only(named)
    broken = sorted(named.keys() & set(found.unreadable))
    if counts and broken:
        raise _unreadable(newest, broken[0])
    if counts and not _commit_without(table, newest, counts, erasure):
        return None
    return sum(counts.values())


def _commit_without(
    table: DeltaTable, newest: Snapshot, counts: dict[str, int], erasure: Erasure
) -> bool:
    uri, named = newest.uri, named_sizes(table)
    listed, parts = _parts_of(table, newest)
    strange = named.keys() - set(files_of(parts))
    private = replace(erasure, private=newest.schema.private)
    own = {path: count for path, count in counts.items() if path not in strange}
    clean = write_clean(uri, own, private, {path: {} for path in own})
    by_old = {each.old: each for each in clean}
    changed = [_without(part, by_old, newest, listed.schema) for part in parts]
    new = [part for part, old in zip(changed, parts, strict=True) if part is not old]
    combined = combine(changed)
    if not combined.digest.rows:
        delete_clean(uri, clean)
        raise _no_row_left(newest)
    snapshot = replace(
        newest,
        digest=combined.digest.hexdigest(),
        rows=combined.digest.rows,
        statistics=combined.statistics,
        repeated_keys=recount(uri, newest.repeated_keys, combined.parts),
    )
    ids = tuple(part.id for part in combined.parts)
    metadata = {**metadata_of(snapshot), **replace(listed, ids=ids).metadata()}
    actions = actions_of([*clean, *(CleanFile(path, None, None, 0) for path in strange)], named)
    try:
        with stored_parts(uri, new):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                commit_properties=CommitProperties(metadata, max_commit_retries=0),
            )
    except CommitFailedError:
        delete_clean(uri, clean)
        return False
    return True


def _unreadable(newest: Snapshot, path: str) -> WorkError:
    return WorkError(
        f"the newest snapshot of {newest.name!r} has a file that cannot be read, so no snapshot "
        "without the rows can be made of it",
        seen=f"{newest.uri}/{path}",
        hint="erase the rows from the source, and make a new snapshot: millrace run FILE --set "
        "dataset.mode=full; then run this command again",
    )


def _no_row_left(newest: Snapshot) -> InputError:
    return InputError(
        f"the dataset {newest.name!r} would have no row left",
        seen=f"the keys of all {newest.rows} rows",
        valid="keys of some of the rows",
        hint="erase the rows from the source; when no job runs, delete the dataset's folder "
        f"{newest.uri} and what was made of it, such as tokens; then run this command again, for "
        "the other tables",
    )


def _parts_of(table: DeltaTable, newest: Snapshot) -> tuple[PartList, tuple[Part, ...]]:
    """Return the parts of the newest snapshot; one part of all files if they are not known."""
    known = parts_of_newest(table, newest.uri)
    if not isinstance(known, str):
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
    return replace(
        part,
        id=uuid4().hex,
        files=files,
        digest=digest,
        statistics=statistics,
        outdated=True,
    )


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
