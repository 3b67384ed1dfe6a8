"""Which rows of a Parquet file are erased, and the file without them.

The file is replaced in place by one of the same size: the log of a table names each file with its
size, and readers of an earlier version look for the end of the file there.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from millrace.models.common.errors import WorkError

MAGIC_BYTES = 8
"""A Parquet file ends with the length of its footer, 4 bytes, and `PAR1`."""
DRAFT = ".draft.parquet"
"""End of the name of a file that will replace another. It is in the table's folder, where `clean`
and the next erasure find it if the command is killed."""
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
        columns: the columns that say it; a file without one of them has no such rows.
        match: returns the key for which a row is erased, null if the row stays, of each row of a
            table with these columns.
        private: columns of which no statistics are written.
    """

    columns: tuple[str, ...]
    match: Callable[[pa.Table], pa.Array]
    private: tuple[str, ...] = ()

    @classmethod
    def by_value(cls, column: str, values: Collection[str]) -> "Erasure":
        """Return the erasure of the rows with one of some values."""
        wanted = pa.array(sorted(values), pa.string())
        return cls((column,), lambda rows: only_wanted(rows[column], wanted), (column,))

    def search(self, filesystem: fs.FileSystem, path: str) -> Counter[str]:
        """Return the number of rows of a file to erase, by key; none if the file lacks the columns.

        Raises:
            ArrowInvalid: the file has no footer.
            OSError: the file cannot be read.
        """
        found = Counter[str]()
        with filesystem.open_input_file(path) as opened:
            file = pq.ParquetFile(opened)
            if not set(self.columns) <= set(file.schema_arrow.names):
                return found
            for group in range(file.metadata.num_row_groups):
                rows = file.read_row_group(group, columns=list(self.columns))
                found.update(self.match(rows).drop_null().to_pylist())
        return found

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
                    rows = rows.filter(pc.is_null(self.match(rows)))
                    left += len(rows)
                    if len(rows):
                        writer.write_table(rows, row_group_size=len(rows))
        return sink.getvalue().to_pybytes(), left

    def scrub(self, filesystem: fs.FileSystem, path: str, drafts: str) -> None:
        """Replace a file by one of the same size without the rows.

        Args:
            filesystem: the file system.
            path: the file.
            drafts: beginning of the path of the new file while it is written.

        Raises:
            WorkError: the file without the rows is larger than the file with them.
        """
        size = filesystem.get_file_info(path).size
        copies = (self.copy(filesystem, path, **options)[0] for options in _SMALLER)
        content = next((content for content in copies if len(content) <= size), None)
        if content is None:
            raise WorkError("the file without the rows is larger than the file with them")
        draft = f"{drafts}{uuid4().hex}{DRAFT}"
        try:
            with filesystem.open_output_stream(draft) as stream:
                stream.write(pad(content, size))
            filesystem.move(draft, path)
        finally:
            with suppress(FileNotFoundError):
                filesystem.delete_file(draft)


def only_wanted(values: pa.Array, wanted: pa.Array) -> pa.Array:
    """Return values as text, with null in place of those that are not wanted."""
    values = values.cast(pa.string())  # a column that is all null may have no type
    is_wanted = pc.fill_null(pc.is_in(values, value_set=wanted), False)
    return pc.if_else(is_wanted, values, pa.scalar(None, pa.string()))


def pad(content: bytes, size: int) -> bytes:
    """Return a Parquet file of at least `size` bytes: zeros before the footer, which nobody reads.

    All places in a footer are counted from the beginning of the file, so they stay right.
    """
    missing = size - len(content)
    if missing <= 0:
        return content
    footer = int.from_bytes(content[-MAGIC_BYTES:-4], "little") + MAGIC_BYTES
    return content[:-footer] + bytes(missing) + content[-footer:]


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
