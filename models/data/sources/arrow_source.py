"""Parquet files and Delta tables: sources that have column types."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.delta_files import dataset_of, local_folder
from millrace.models.data.sources.find_files import File, FileSource
from millrace.models.data.sources.source import (
    CHUNK_BYTES,
    CHUNK_ROWS,
    Chunk,
    FileColumns,
    Source,
    SourceFile,
    open_error,
    projection,
    refuse_extension_types,
    require_distinct,
    slice_batches,
)

PIECE_BYTES = 128 * 1024 * 1024
"""A file of at least twice this size is read in pieces of about this size."""
BUFFER_BYTES = 128 * 1024
"""Bytes of a column that are read at a time from a file on this machine."""
DOCUMENTS = 1024
"""Rows per batch if rows are documents, because each may have many pages."""


def scan_batches(
    dataset: ds.Dataset,
    columns: list[str] | None,
    filter: ds.Expression | None = None,
    batch_rows: int = CHUNK_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Stream a dataset in order, with little readahead, so that memory use stays bounded."""
    scanner = dataset.scanner(
        columns=columns,
        filter=filter,
        batch_size=batch_rows,
        batch_readahead=2,
        fragment_readahead=1,
    )
    yield from scanner.to_batches()


@dataclass(frozen=True)
class ParquetSource(FileSource):
    """Parquet files. Schemas may differ by file; columns are cast to the table's types later.

    Attributes:
        row_groups: the row groups to read, if the source is a part of one file; None: all of them.
    """

    format = "parquet"
    row_groups: range | None = field(default=None, kw_only=True)

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the first file."""
        with _open_parquet(self.first) as reader:
            return _check_types(reader.schema_arrow, self.spec, self.spec.source)

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of all files."""
        wanted = projection(self.spec, self.schema.names)
        for file in self.files:
            with _open_parquet(file) as reader:
                names = reader.schema_arrow.names
                require_distinct(names, file.path)
                _refuse_types(reader.schema_arrow, wanted, file.path)
                present = [name for name in wanted if name in names]
                rows = min(_rows_of(self.spec), fitting_rows(reader.metadata))
                groups = (
                    range(reader.num_row_groups) if self.row_groups is None else self.row_groups
                )
                earlier = (reader.metadata.row_group(n).num_rows for n in range(groups.start))
                batches = reader.iter_batches(rows, [*groups], present)
                columns = FileColumns.beside(names, self.schema.names)
                yield from slice_batches(batches, file.path, sum(earlier), columns)

    def cut(self) -> Sequence["ParquetSource"]:
        """Return a large file in pieces of whole row groups, each of about `PIECE_BYTES`."""
        if len(self.files) != 1 or self.files[0].size < 2 * PIECE_BYTES:
            return (self,)
        with _open_parquet(self.files[0]) as reader:
            groups = range(reader.num_row_groups)
            sizes = [reader.metadata.row_group(number).total_byte_size for number in groups]
        share = sum(sizes) / (self.files[0].size // PIECE_BYTES)
        places = [int(start // share) for start in np.cumsum(sizes) - sizes]
        ends = [*(n for n in groups[1:] if places[n] != places[n - 1]), len(sizes)]
        return tuple(replace(self, row_groups=range(*ends)) for ends in pairwise([0, *ends]))


@dataclass(frozen=True)
class DeltaSource(Source):
    """One version of a Delta table: the newest version when the source is opened.

    Attributes:
        table: the table.
        paths: the table's files to read, by their path in its folder; None: all of them.
    """

    table: DeltaTable
    paths: frozenset[str] | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        return _check_types(self._dataset.schema, self.spec, self.spec.source)

    @cached_property
    def _dataset(self) -> ds.Dataset:
        try:
            return dataset_of(self.table, self.paths)
        except DeltaError as error:
            raise InputError(
                f"the Delta table {self.spec.source} cannot be read",
                seen=error,
                valid="a table without deletion vectors and without column mapping",
                hint="REORG or rewrite the table, or set dataset.source to its Parquet files",
            ) from error

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of the table's version."""
        wanted = projection(self.spec, self.schema.names)
        return slice_batches(scan_batches(self._dataset, wanted, batch_rows=_rows_of(self.spec)))

    def found(self) -> tuple[SourceFile, ...]:
        """Return the table's files, which never change."""
        actions = pa.table(self.table.get_add_actions()).to_pylist()
        files = (
            SourceFile(unquote(each["path"]), each["size_bytes"], each["modification_time"])
            for each in actions
        )
        chosen = (file for file in files if self.paths is None or file.path in self.paths)
        return tuple(sorted(chosen, key=lambda file: file.path))

    def only(self, files: Sequence[SourceFile]) -> Self:
        """Return the source of some of the table's files."""
        return replace(self, paths=frozenset(file.path for file in files))

    def local_files(self) -> tuple[Path, ...]:
        """Return the table's folder if it is on this machine."""
        return tuple(map(Path, local_folder(self.table)))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by address: a table of deltalake cannot be pickled."""
        address = self.table.table_uri, self.table.version()
        return _reopen_delta, (self.spec, *address, self.paths)

    def describe(self) -> dict[str, Any]:
        """Return the table's URI and version."""
        uri, version = self.table.table_uri, self.table.version()
        return {"format": "delta", "table": uri, "version": version}


def open_delta(spec: DatasetSpec, uri: str) -> DeltaSource:
    """Open the newest version of the Delta table at `uri`.

    Raises:
        InputError: there is no such table.
        TransientError: a remote store cannot be reached.
    """
    try:
        return DeltaSource(spec, DeltaTable(uri))
    except OSError as error:
        raise open_error(uri, error) from error
    except TableNotFoundError as error:
        raise InputError(
            "the source is not a Delta table",
            seen=uri,
            valid="a folder with a _delta_log",
            hint="paths are relative to the pipeline file's folder",
        ) from error


def _reopen_delta(
    spec: DatasetSpec, uri: str, version: int, paths: frozenset[str] | None
) -> DeltaSource:
    return DeltaSource(spec, DeltaTable(uri, version=version), paths)


def _rows_of(spec: DatasetSpec) -> int:
    return DOCUMENTS if spec.continued else CHUNK_ROWS


def _open_parquet(file: File) -> pq.ParquetFile:
    """Open a file to be read page by page, or in a store, row group by row group."""
    buffer_size = BUFFER_BYTES if file.local else 0
    try:
        return pq.ParquetFile(
            file.path,
            filesystem=file.filesystem,
            buffer_size=buffer_size,
            pre_buffer=not file.local,
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"{file.path} is not a Parquet file",
            seen=error,
            hint="write the file again, or set dataset.format to its format",
        ) from error


def fitting_rows(metadata: pq.FileMetaData) -> int:
    """Return how many rows of a Parquet file take about `CHUNK_BYTES` in memory; at least one."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    bytes_per_row = sum(group.total_byte_size for group in groups) / max(1, metadata.num_rows)
    return max(1, int(CHUNK_BYTES / max(bytes_per_row, 8 * metadata.num_columns, 1)))


def _check_types(schema: pa.Schema, spec: DatasetSpec, source: str) -> pa.Schema:
    """Return the schema; raise InputError if a column to read has an Arrow extension type."""
    wanted = projection(spec, schema.names) if spec.features is not None else schema.names
    _refuse_types(schema, wanted, source)
    return schema


def _refuse_types(schema: pa.Schema, wanted: Sequence[str], source: str) -> None:
    """Raise InputError if one of the columns to read has an Arrow extension type."""
    fields = [schema.field(name) for name in wanted if name in schema.names]
    refuse_extension_types(pa.schema(fields), source)
