"""The input of a batch job in pieces, each read by one task, and the keys of its rows."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.sources.csv_source import CsvSource
from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.jsonl_source import JsonlSource
from millrace.models.data.sources.source import (
    CHUNK_ROWS,
    Chunk,
    refuse_extension_types,
    slice_batches,
)
from millrace.models.data.split import joined_keys
from millrace.serving.batch.job import FILE_ROWS

PIECE_ROWS = CHUNK_ROWS // 2
"""Rows of a Parquet file that are read in one go, or one row group where that is more."""
CHUNK_BYTES = 16 * 2**20
"""Of wide rows that are encoded at a time, about."""


@dataclass(frozen=True)
class Piece(ABC):
    """A file, or some row groups of one.

    Attributes:
        file: the file.
        number: the file's place in the input.
        first: place in the file of the piece's first row.
        rows: how many rows there are; None where only reading tells.
    """

    file: File
    number: int
    first: int = 0
    rows: int | None = None

    @property
    def name(self) -> str:
        """What it is known by in the input."""
        return f"{self.number:06d}-{self.first:012d}"

    @property
    def row(self) -> int:
        """The `ROW` of its first row."""
        return self.number * FILE_ROWS + self.first

    @property
    @abstractmethod
    def size(self) -> int:
        """About how many bytes are read."""

    @abstractmethod
    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows, in order, of the columns that are there."""


@dataclass(frozen=True)
class TextPiece(Piece):
    """A whole file of CSV or JSON Lines, read by ingestion's own readers.

    So a cell means the same here and there, and a line that cannot be read is one row with an
    error, not the end of the job.

    Attributes:
        format: `csv` or `jsonl`.
    """

    format: str = "csv"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows."""
        spec = DatasetSpec(source=self.file.path, target=KEY, features=tuple(columns))
        if self.format == "jsonl":
            return JsonlSource(spec, (self.file,)).chunks()
        names = CsvSource(spec, (self.file,)).schema.names
        present = tuple(name for name in columns if name in names)
        # Every source has a target; here it is of no importance which column that is.
        wanted = spec.model_copy(update={"target": names[0], "features": present})
        return CsvSource(wanted, (self.file,)).chunks()


@dataclass(frozen=True)
class ParquetPiece(Piece):
    """Row groups of a Parquet file.

    Attributes:
        groups: their numbers.
        bytes: their size.
        constants: columns that the file's folders give, `name=value`, as text.
    """

    groups: tuple[int, ...] = ()
    bytes: int = 0
    constants: tuple[tuple[str, str | None], ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the row groups."""
        return self.bytes

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        """Read the rows."""
        whole = ds.ParquetFileFormat().make_fragment(self.file.path, self.file.filesystem)
        # Given to `make_fragment` they would go through a set: 8, 6, 7.
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
            yield Chunk(_with(chunk.rows, given))

    def _chunk_rows(self) -> int:
        return min(CHUNK_ROWS, max((self.rows or 0) * CHUNK_BYTES // max(self.bytes, 1), 1))


def _with(rows: pa.RecordBatch, constants: dict[str, str | None]) -> pa.RecordBatch:
    for name, value in constants.items():
        cells = pa.repeat(pa.scalar(value, pa.string()), rows.num_rows)
        rows = rows.append_column(name, cells)
    return rows


def declared_keys(
    rows: pa.RecordBatch | pa.Table, key: Sequence[str], held: Sequence[Column]
) -> pa.Array | None:
    """Return the rows' keys where the input has any: its own `_key`, or the key columns, joined.

    Args:
        rows: as they were read.
        key: the key columns.
        held: the columns as the dataset holds them.
    """
    if KEY in rows.schema.names:
        return cast(cells_of(rows, KEY), Column(KEY, "string")).values
    if not key:
        return None
    texts = {name: _key_cells(cells_of(rows, name), name, held) for name in key}
    return joined_keys(pa.record_batch(texts), tuple(key))


def cells_of(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return a column in one piece; one that is not there counts as null."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows)
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _key_cells(cells: pa.Array, name: str, held: Sequence[Column]) -> pa.Array:
    """Return cells as text as ingestion writes it; what is not of the held type stays as it is."""
    text = cast(cells, Column(name, "string")).values
    column = next((column for column in held if column.name == name), None)
    return (
        text if column is None else pc.coalesce(cast(cells, column).values.cast(pa.string()), text)
    )
