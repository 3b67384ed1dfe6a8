"""Erases rows from the newest version of a table, in one commit.

Delta's own deletion leaves the rows in the files of earlier versions: `scrub_files` replaces those.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from millrace.models.common.errors import TransientError
from millrace.models.data.erasure import Erasure
from millrace.models.data.file_statistics import statistics_of
from millrace.models.data.scrub_files import Erased, Found, search_file
from millrace.models.data.table_commit import commit_with_retries, filesystem_of

Describe = Callable[[DeltaTable, Collection["CleanFile"]], dict[str, str]]
"""Returns the metadata of a commit, given the table before it and the files that it changes."""


@dataclass(frozen=True)
class CleanFile:
    """A file without erased rows, in place of another.

    Attributes:
        old: path of the other file in the table's folder.
        name: path of the file in the table's folder; None if no row is left.
        action: the action that adds it; None if no row is left.
        erased: number of erased rows.
    """

    old: str
    name: str | None
    action: AddAction | None
    erased: int


def write_clean(
    uri: str,
    files: Mapping[str, int],
    erasure: Erasure,
    partitions: Mapping[str, dict[str, str | None]],
) -> list[CleanFile]:
    """Write copies of files without the rows, beside them, where no reader sees them yet.

    Args:
        uri: URI of the table.
        files: the files, by path in the table's folder, with the number of rows to erase.
        erasure: the rows.
        partitions: partition values of each file.
    """
    filesystem, root = filesystem_of(uri)
    now = int(time.time() * 1000)
    written = []
    for path, count in files.items():
        content, left = erasure.copy(filesystem, f"{root}{path}")
        if not left:
            written.append(CleanFile(path, None, None, count))
            continue
        name = str(PurePosixPath(path).with_name(f"{uuid4().hex}.parquet"))
        with filesystem.open_output_stream(f"{root}{name}") as stream:
            stream.write(content)
        metadata = pq.read_metadata(pa.BufferReader(content))
        statistics = statistics_of(metadata, erasure.private)
        action = AddAction(name, len(content), partitions[path], now, True, statistics)
        written.append(CleanFile(path, name, action, count))
    return written


def erase_in_newest(
    uri: str, erasure: Erasure, within: str = "", describe: Describe = lambda *_: {}
) -> Erased:
    """Erase rows from the newest version of a table, in one commit.

    Args:
        uri: URI of the table.
        erasure: the rows.
        within: beginning of the paths of the files that are looked at.
        describe: returns the commit's metadata.

    Raises:
        TransientError: other commits came first, again and again.
    """

    def attempt() -> Erased:
        table = DeltaTable(uri)
        named = named_sizes(table)
        filesystem, root = filesystem_of(uri)
        paths = [path for path in named if path.startswith(within)]
        keys = {path: search_file(filesystem, f"{root}{path}", erasure) for path in paths}
        found = Found({path: each for path, each in keys.items() if each})
        if not found.files:
            return Erased()
        partitions = {path: named[path][1] for path in found.files}
        clean = write_clean(uri, found.only(paths), erasure, partitions)
        try:
            table.create_write_transaction(
                actions_of(clean, named),
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(describe(table, clean), max_commit_retries=0),
            )
        except CommitFailedError:
            delete_clean(uri, clean)
            raise
        return Erased(rows=sum(each.erased for each in clean), keys=found.keys)

    try:
        return commit_with_retries(attempt)
    except CommitFailedError as error:
        raise TransientError(
            f"the rows were not erased from {uri}", seen=error, hint="run the command again"
        ) from error


def delete_clean(uri: str, clean: Iterable[CleanFile]) -> None:
    """Delete clean files that no commit names."""
    filesystem, root = filesystem_of(uri)
    for each in clean:
        if each.name is not None:
            filesystem.delete_file(f"{root}{each.name}")


def actions_of(
    clean: Iterable[CleanFile], named: Mapping[str, tuple[int, dict[str, str | None]]]
) -> list[AddAction | RemoveAction]:
    """Return the actions of the commit that puts clean files in place of others.

    Args:
        clean: the clean files.
        named: size and partition values of each of the table's files.
    """
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = []
    for each in clean:
        actions.append(RemoveAction(each.old, True, now, *named[each.old]))
        if each.action is not None:
            actions.append(each.action)
    return actions


def named_sizes(table: DeltaTable) -> dict[str, tuple[int, dict[str, str | None]]]:
    """Return size and partition values of each file of a table, by its path."""
    columns = table.metadata().partition_columns
    rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {
        row["path"]: (
            row["size_bytes"],
            {name: str(row[f"partition.{name}"]) for name in columns},
        )
        for row in rows
    }
