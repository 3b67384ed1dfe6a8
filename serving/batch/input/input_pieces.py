"""The input of a batch job, split into pieces that tasks read, and the keys of its rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.open_source import source_of_files
from millrace.models.data.sources.source import (
    CHUNK_ROWS,
    Chunk,
    refuse_extension_types,
    slice_batches,
)
from millrace.models.data.split import joined_keys
from millrace.serving.batch.job import FILE_ROWS

PIECE_ROWS = CHUNK_ROWS // 2
"""Smallest number of rows of a Parquet piece, except the last piece of a file. A piece has
whole row groups.
"""
CHUNK_BYTES = 16 * 2**20
"""Estimated bytes of rows that are encoded at a time, if rows are wide."""

Constants = tuple[tuple[str, str | None], ...]
"""Columns whose values, as text, come from the names (`name=value`) of the folders above a file."""


@dataclass(frozen=True)
class Piece(ABC):
    """A part of the input: a file, or some row groups of a Parquet file.

    Attributes:
        file: the file.
        number: the file's number in the input.
        first: row number, in the file, of the piece's first row.
        rows: number of rows; None if it is known only after reading.
    """

    file: File
    number: int
    first: int = 0
    rows: int | None = None

    @property
    def name(self) -> str:
        """The name of the piece, unique in the input."""
        return f"{self.number:06d}-{self.first:012d}"

    @property
    def row(self) -> int:
        """The `ROW` of the piece's first row."""
        return self.number * FILE_ROWS + self.first

    @property
    @abstractmethod
    def size(self) -> int:
        """Estimated number of bytes to read."""

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows in order, with the columns that exist among `columns`."""


@dataclass(frozen=True)
class TextPiece(Piece):
    """A whole file, such as CSV or JSON Lines, that is read by the same code as in ingestion.

    So a cell means the same here and in ingestion. A line that cannot be read is one row with an
    error, and does not end the job.

    Attributes:
        format: a name of `FILE_FORMATS`.
    """

    format: str = "csv"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows."""
        spec = DatasetSpec(source=self.file.path, target=KEY, features=tuple(columns))
        source = source_of_files(self.format, spec, (self.file,))
        if source.schema is None:
            return source.chunks()
        names = source.schema.names
        present = tuple(name for name in columns if name in names)
        # A source must have a target; here it does not matter which column that is.
        wanted = spec.model_copy(update={"target": names[0], "features": present})
        return replace(source, spec=wanted).chunks()


@dataclass(frozen=True)
class ParquetPiece(Piece):
    """Row groups of a Parquet file.

    Attributes:
        groups: numbers of the row groups.
        bytes: size of the row groups.
        constants: columns whose values come from the names of the file's folders.
    """

    groups: tuple[int, ...] = ()
    bytes: int = 0
    constants: Constants = ()

    @property
    def size(self) -> int:
        """Bytes of the row groups."""
        return self.bytes

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows."""
        whole = ds.ParquetFileFormat().make_fragment(self.file.path, self.file.filesystem)
        # `make_fragment` would put the numbers into a set and lose their order: 8, 6, 7.
        fragment = whole.subset(row_group_ids=list(self.groups))
        schema = fragment.physical_schema
        present = [name for name in columns if name in schema.names]
        refuse_extension_types(pa.schema([schema.field(n) for n in present]), self.file.path)
        given = {name: value for name, value in self.constants if name in columns}
        batches = fragment.scanner(
            columns=[name for name in present if name not in given],
            batch_size=self._chunk_rows(),
            batch_readahead=2,
        ).to_batches()
        for chunk in slice_batches(batches):
            yield Chunk(_add_constants(chunk.rows, given))

    def _chunk_rows(self) -> int:
        return min(CHUNK_ROWS, max((self.rows or 0) * CHUNK_BYTES // max(self.bytes, 1), 1))


def _add_constants(rows: pa.RecordBatch, constants: dict[str, str | None]) -> pa.RecordBatch:
    for name, value in constants.items():
        cells = pa.repeat(pa.scalar(value, pa.string()), rows.num_rows)
        rows = rows.append_column(name, cells)
    return rows


def split_parquet(
    source: str, files: Sequence[tuple[File, Constants]]
) -> tuple[tuple[Piece, ...], list[str]]:
    """Return the pieces of Parquet files, and the columns of the first file.

    Args:
        source: the name of the input.
        files: the files, each with the columns that come from its folders' names.

    Raises:
        InputError: a file is not Parquet.
    """
    pieces: list[Piece] = []
    names: list[str] = []
    for number, (file, constants) in enumerate(files):
        try:
            with file.filesystem.open_input_file(file.path) as opened:
                parquet = pq.ParquetFile(opened)
                footer, schema = parquet.metadata, parquet.schema_arrow
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InputError(
                f"{source} cannot be read as Parquet",
                seen=f"{file.path}: {str(error).splitlines()[0]}",
                hint="write the file again, or rename it with the ending of its real format",
            ) from error
        names = names or [*schema.names, *(name for name, _ in constants)]
        pieces += _split_file(file, number, footer, constants)
    return tuple(pieces), names


def _split_file(
    file: File, number: int, footer: pq.FileMetaData, constants: Constants
) -> Iterator[Piece]:
    groups: list[int] = []
    first = rows = size = 0
    for group in range(footer.num_row_groups):
        groups.append(group)
        rows += footer.row_group(group).num_rows
        size += footer.row_group(group).total_byte_size
        if rows >= PIECE_ROWS or group == footer.num_row_groups - 1:
            yield ParquetPiece(file, number, first, rows, tuple(groups), size, constants)
            first += rows
            groups, rows, size = [], 0, 0


def declared_keys(
    rows: pa.RecordBatch | pa.Table, key: Sequence[str], dataset_columns: Sequence[Column]
) -> pa.Array | None:
    """Return the keys of rows: the column `_key`, or the joined key columns if there is no `_key`.

    Args:
        rows: the rows as they were read.
        key: the key columns.
        dataset_columns: the columns of the dataset.

    Returns:
        None if there is no `_key` and there are no key columns.
    """
    if KEY in rows.schema.names:
        return cast(cells_of(rows, KEY), Column(KEY, "string")).values
    if not key:
        return None
    texts = {name: _key_cells(cells_of(rows, name), name, dataset_columns) for name in key}
    return joined_keys(pa.record_batch(texts), tuple(key))


def cells_of(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return a column as one array; nulls if there is no such column."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows)
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _key_cells(cells: pa.Array, name: str, dataset_columns: Sequence[Column]) -> pa.Array:
    """Return cells as the text that ingestion writes; a cell of the wrong type keeps its text."""
    text = cast(cells, Column(name, "string")).values
    column = next((column for column in dataset_columns if column.name == name), None)
    if column is None:
        return text
    return pc.coalesce(cast(cells, column).values.cast(pa.string()), text)
