"""Erases rows from the Parquet files of a table: in a new version, and in files of the past.

Delta's own deletion leaves the rows in the files of earlier versions. Those files are replaced in
place here, by files of the same size without the rows: the log names each file with its size, and
readers of an earlier version look for the end of the file there.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.data.file_statistics import statistics_of
from millrace.models.data.table_commit import commit_with_retries, filesystem_of
from millrace.models.data.table_files import DataFile, list_data_files

MAGIC_BYTES = 8
"""A Parquet file ends with the length of its footer, 4 bytes, and `PAR1`."""
_SMALLER: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "zstd", "compression_level": 9},
    {"compression": "zstd", "compression_level": 19, "write_statistics": False},
    {"compression": "brotli", "write_statistics": False, "store_schema": False},
)
"""Options of pyarrow's writer, each of which makes smaller files. Compressed data may be larger
without some rows."""


@dataclass(frozen=True)
class Erasure:
    """Which rows are erased.

    Attributes:
        columns: the columns that say it.
        find: returns a mask of the rows to erase, given these columns.
        private: columns of which no statistics are written.
    """

    columns: tuple[str, ...]
    find: Callable[[pa.Table], pa.BooleanArray]
    private: tuple[str, ...] = ()

    @classmethod
    def by_value(cls, column: str, values: Collection[str]) -> "Erasure":
        """Return the erasure of the rows with one of some values."""
        wanted = pa.array(sorted(values), pa.string())
        return cls((column,), lambda rows: _is_in(rows[column], wanted), (column,))

    def count(self, filesystem: fs.FileSystem, path: str) -> int:
        """Return the number of rows of a file to erase; 0 if the file lacks the columns."""
        with filesystem.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            if not set(self.columns) <= set(file.schema_arrow.names):
                return 0
            groups = range(file.metadata.num_row_groups)
            tables = (file.read_row_group(group, columns=list(self.columns)) for group in groups)
            return sum(pc.sum(self.find(table)).as_py() or 0 for table in tables)

    def copy(self, filesystem: fs.FileSystem, path: str, **options: Any) -> tuple[bytes, int]:
        """Return a file's content without the rows, and the number of rows left.

        Args:
            filesystem: the file system.
            path: the file.
            options: of pyarrow's writer, in place of those with which the file was written.
        """
        sink = pa.BufferOutputStream()
        with filesystem.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            left, options = 0, {**_options_of(file.metadata), **options}
            with pq.ParquetWriter(sink, file.schema_arrow, **options) as writer:
                for group in range(file.metadata.num_row_groups):
                    rows = file.read_row_group(group)
                    rows = rows.filter(pc.invert(self.find(rows)))
                    left += len(rows)
                    if len(rows):
                        writer.write_table(rows, row_group_size=len(rows))
        return sink.getvalue().to_pybytes(), left

    def scrub(self, filesystem: fs.FileSystem, path: str) -> None:
        """Replace a file by one of the same size without the rows."""
        size = filesystem.get_file_info(path).size
        copies = (self.copy(filesystem, path, **options)[0] for options in _SMALLER)
        content = next((content for content in copies if len(content) <= size), None)
        if content is None:
            raise WorkError(
                f"a file without the rows is larger than the file with them: {path}",
                hint="remove the earlier versions of the table with `millrace clean`",
            )
        draft = f"{path}.{uuid4().hex[:8]}"
        with filesystem.open_output_stream(draft) as stream:
            stream.write(pad(content, size))
        filesystem.move(draft, path)


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


def find_files(uri: str, erasure: Erasure) -> dict[str, int]:
    """Return the files in a table's folder that have rows to erase, by path in it, with counts."""
    filesystem, _ = filesystem_of(uri)
    found = {path: _count(erasure, filesystem, file) for path, file in list_data_files(uri).items()}
    return {path: count for path, count in found.items() if count}


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


def erase_in_newest(uri: str, erasure: Erasure, spared: Collection[str] = ()) -> int:
    """Erase rows from the newest version of a table, in one commit, and return their number.

    Args:
        uri: URI of the table.
        erasure: the rows.
        spared: beginnings of paths of files that are left as they are.

    Raises:
        TransientError: other commits came first, again and again.
    """

    def attempt() -> int:
        table = DeltaTable(uri)
        named = named_sizes(table)
        filesystem, root = filesystem_of(uri)
        paths = [path for path in named if not path.startswith(tuple(spared))]
        counts = {path: erasure.count(filesystem, f"{root}{path}") for path in paths}
        found = {path: count for path, count in counts.items() if count}
        if not found:
            return 0
        partitions = {path: named[path][1] for path in found}
        clean = write_clean(uri, found, erasure, partitions)
        try:
            table.create_write_transaction(
                actions_of(clean, named),
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            for each in clean:
                if each.name is not None:
                    filesystem.delete_file(f"{root}{each.name}")
            raise
        return sum(each.erased for each in clean)

    try:
        return commit_with_retries(attempt)
    except CommitFailedError as error:
        raise TransientError(
            f"the rows were not erased from {uri}", seen=error, hint="run the command again"
        ) from error


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


def scrub_files(uri: str, erasure: Erasure, spared: Collection[str] = ()) -> int:
    """Erase rows from every file in a table's folder, and return the number of such files."""
    filesystem, root = filesystem_of(uri)
    paths = [path for path in find_files(uri, erasure) if not path.startswith(tuple(spared))]
    for path in paths:
        erasure.scrub(filesystem, f"{root}{path}")
    return len(paths)


def pad(content: bytes, size: int) -> bytes:
    """Return a Parquet file of at least `size` bytes: zeros before the footer, which nobody reads.

    All places in a footer are counted from the beginning of the file, so they stay right.
    """
    missing = size - len(content)
    if missing <= 0:
        return content
    footer = int.from_bytes(content[-MAGIC_BYTES:-4], "little") + MAGIC_BYTES
    return content[:-footer] + bytes(missing) + content[-footer:]


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


def _count(erasure: Erasure, filesystem: fs.FileSystem, file: DataFile) -> int:
    try:
        return erasure.count(filesystem, file.path)
    except (pa.ArrowInvalid, FileNotFoundError):  # being written, or removed meanwhile
        return 0


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> pa.BooleanArray:
    return pc.fill_null(pc.is_in(column, value_set=values), False)


def _options_of(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Return the writer's options with which a file was written, as far as it says so."""
    if not metadata.num_row_groups or not metadata.num_columns:
        return {}
    columns = list(_columns(metadata))
    names = [each.path_in_schema for each in columns if each.has_dictionary_page]
    codec = str(columns[0].compression).lower()
    return {
        "compression": "none" if codec == "uncompressed" else codec,
        "use_dictionary": names or False,
    }


def _columns(metadata: pq.FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    group = metadata.row_group(0)
    return (group.column(place) for place in range(metadata.num_columns))
