"""Reads rows: checks and counts them, writes good rows to files, and keeps bad rows.

Threads check and write the next rows while the last ones are counted, in order. So the files, the
statistics and the digest are the same with any number of threads.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa

from millrace.models.common.ahead import map_ahead
from millrace.models.common.arrays import Indices
from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.category_limit import require_few_categories
from millrace.models.data.column_statistics import ColumnStatistics, merge, statistics_of
from millrace.models.data.forgotten_keys import ForgottenKeys
from millrace.models.data.infer_schema import resolve_schema
from millrace.models.data.lacked_columns import find_lacked
from millrace.models.data.parts import Part
from millrace.models.data.quarantine import BadRows, Quarantine, bad_of_chunk
from millrace.models.data.row_checks import check
from millrace.models.data.row_files import RowFile, RowFiles
from millrace.models.data.schema import TableSchema
from millrace.models.data.sources.source import (
    CHUNK_ROWS,
    Chunk,
    FileColumns,
    Source,
    SourceFile,
    read_error,
)
from millrace.models.data.split import Digest, Hashes, hash_rows, with_hashed_keys

SAMPLE_BYTES = 64 * 1024 * 1024
"""Types are inferred from about this many bytes of documents, because a row may be a whole book."""

NO_KEYS: Hashes = np.empty(0, np.uint64)

Progress = Callable[[int], None]


@dataclass(frozen=True)
class CheckedChunk:
    """A chunk after its rows were checked and counted.

    Attributes:
        good: the good rows, with `_key` and `_bucket`.
        bad: the unreadable lines and the bad rows, with the schema `BAD`.
        file: path of the file that they are in; empty if there is not one.
        records: number of each in the file, from 1.
        line_breaks: number of cells of a CSV file that have line breaks.
        columns: the columns of the file; None if not known.
        rows: number of rows that were read.
        digest: digest of the good rows.
        statistics: statistics of the good rows, by column.
        keys: hashes of the good rows' keys; none if no columns are the key.
        left_out: number of rows that were left out, because their keys were forgotten.
    """

    good: pa.RecordBatch
    bad: pa.RecordBatch
    file: str
    records: Indices
    line_breaks: int
    columns: FileColumns | None
    rows: int
    digest: Digest
    statistics: Mapping[str, ColumnStatistics]
    keys: Hashes
    left_out: int


def check_chunk(
    schema: TableSchema, quarantine: Quarantine, forgotten: ForgottenKeys, chunk: Chunk
) -> CheckedChunk:
    """Check and count the rows of a chunk; write no more bad rows than the quarantine takes."""
    checked = forgotten.leave_out(check(chunk.rows, schema, quarantine.room), schema)
    bad, records = bad_of_chunk(chunk, checked)
    hashes, digest = hash_rows(checked.good), Digest()
    digest.update(hashes)
    good, keys = with_hashed_keys(checked.good, schema, hashes)
    return CheckedChunk(
        good,
        bad,
        chunk.file,
        records,
        chunk.line_breaks,
        chunk.columns,
        chunk.rows.num_rows,
        digest,
        statistics_of(checked.good, schema),
        keys if schema.key else keys[:0],
        chunk.rows.num_rows - checked.good.num_rows - checked.bad.num_rows,
    )


@dataclass
class Reading:
    """What was read into one part so far.

    Attributes:
        schema: the schema that every row must fit.
        quarantine: takes the bad rows.
        id: name of the part.
        digest: digest of the good rows.
        statistics: statistics of the good rows, by column.
        line_breaks: number of cells of CSV files that have line breaks.
        keys: hashes of the good rows' keys.
        columns: the columns of each file with rows, by its path, as far as they are known.
        left_out: number of rows that were left out, because their keys were forgotten.
        reads_all: whether all columns are read, and not only those that the pipeline file names.
    """

    schema: TableSchema
    quarantine: Quarantine
    id: str = field(default_factory=lambda: uuid4().hex)
    digest: Digest = field(default_factory=Digest)
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict)
    line_breaks: int = 0
    keys: list[Hashes] = field(default_factory=list)
    columns: dict[str, FileColumns] = field(default_factory=dict)
    left_out: int = 0
    reads_all: bool = False

    def add(self, chunk: CheckedChunk) -> None:
        """Count the rows of a chunk, and keep the bad ones."""
        self.quarantine.add(chunk.bad, chunk.file, chunk.records)
        self.line_breaks += chunk.line_breaks
        self.left_out += chunk.left_out
        if chunk.columns and chunk.rows:
            earlier = self.columns.get(chunk.file, chunk.columns)
            self.columns[chunk.file] = earlier.joined(chunk.columns)
        self.keys.append(chunk.keys)
        self.digest.add(chunk.digest)
        self.statistics = merge(self.statistics, chunk.statistics)
        require_few_categories(self.schema, self.statistics)

    def finish(self, files: tuple[RowFile, ...]) -> "ReadPart":
        """Return what was read.

        Args:
            files: the files with the good rows.
        """
        bad = self.quarantine.finish()
        part = Part(
            id=self.id,
            sources=(),
            files=tuple(file.path.name for file in files),
            digest=self.digest,
            statistics=self.statistics,
            quarantined=bad.rows,
            reasons=bad.reasons,
            bad_files=bad.files,
            line_breaks=self.line_breaks,
            lacked_columns=find_lacked(
                self.columns,
                [each.name for each in self.schema.columns],
                reads_all=self.reads_all,
            ),
            left_out=self.left_out,
        )
        return ReadPart(part, files, bad, np.concatenate([NO_KEYS, *self.keys]))


@dataclass(frozen=True)
class ReadPart:
    """A part that was read and is not published yet.

    Attributes:
        part: the part.
        files: the files with the good rows, in the staging folder.
        bad: the bad rows.
        keys: hashes of the good rows' keys, uint64; none if no columns are the key.
    """

    part: Part
    files: tuple[RowFile, ...]
    bad: BadRows
    keys: Hashes

    def of_files(self, sources: tuple[SourceFile, ...]) -> "ReadPart":
        """Return the part with the files of the source that were read."""
        return replace(self, part=replace(self.part, sources=sources))


def open_rows(
    source: Source, spec: DatasetSpec, stored: TableSchema | None
) -> tuple[TableSchema, Iterator[Chunk]]:
    """Return the schema that every row must fit, and all rows; the schema is inferred if needed.

    Args:
        source: the rows; memory does not grow with their number.
        spec: the pipeline file's `dataset` part.
        stored: schema of the newest snapshot, from which types are taken; None if there is none.

    Raises:
        InputError: there are no rows, a column does not fit, or the source cannot be read.
        TransientError: a source on the network cannot be read.
    """
    chunks = source.chunks()
    try:
        first = _first_chunks(chunks, SAMPLE_BYTES if spec.continued else None)
        names = source.schema.names if source.schema else _columns_of_first_file(first)
    except OSError as error:
        raise read_error(spec.source, error) from error
    if not any(chunk.rows.num_rows for chunk in first):
        raise _no_rows_error(first, spec)
    schema = resolve_schema(spec, names, [chunk.rows for chunk in first], stored)
    return schema, _drain(first, chunks)


def read_part(
    chunks: Iterator[Chunk],
    schema: TableSchema,
    spec: DatasetSpec,
    folder: Path,
    on_rows: Progress,
    threads: int,
    forgotten: ForgottenKeys,
) -> ReadPart:
    """Read rows into a part: good rows into files, bad rows into quarantine, and counts.

    Args:
        chunks: the rows.
        schema: the schema that every row must fit.
        spec: the pipeline file's `dataset` part.
        folder: staging folder for the rows.
        on_rows: called after each batch with its number of rows.
        threads: number of threads that check, and of those that write.
        forgotten: keys whose rows are left out.

    Raises:
        InputError: a column has too many categories, or the source cannot be read.
        TransientError: a source on the network cannot be read to the end.
    """
    reading = Reading(schema, Quarantine(folder), reads_all=spec.features is None)
    rows = RowFiles(
        *(folder, reading.id, schema.stored, schema.names_of("category")),
        private=schema.private,
        threads=threads,
    )
    try:
        with closing(rows):
            check_next = partial(check_chunk, schema, reading.quarantine, forgotten)
            for chunk in map_ahead(check_next, chunks, threads):
                reading.add(chunk)
                rows.add(chunk.good)
                on_rows(chunk.rows)
            return reading.finish(rows.finish())
    except OSError as error:
        raise read_error(spec.source, error) from error


def _first_chunks(chunks: Iterator[Chunk], most_bytes: int | None) -> deque[Chunk]:
    """Take the chunks to infer types from, until they have `CHUNK_ROWS` rows or `most_bytes`."""
    first: deque[Chunk] = deque()
    rows = size = 0
    while rows < CHUNK_ROWS and (most_bytes is None or size < most_bytes):
        chunk = next(chunks, None)
        if chunk is None:
            break
        first.append(chunk)
        rows += chunk.rows.num_rows
        size += chunk.rows.nbytes
    return first


def _columns_of_first_file(first: Sequence[Chunk]) -> list[str]:
    """Return the columns of the first file with rows; each chunk of JSON Lines has keys of its own.

    Where rows are in no files, all of these chunks count.
    """
    filled = [chunk for chunk in first if chunk.rows.num_rows]
    columns = (
        name for chunk in filled if chunk.file == filled[0].file for name in chunk.rows.schema.names
    )
    return list(dict.fromkeys(columns))


def _drain(first: deque[Chunk], rest: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield the first chunks, without keeping them in memory, and then the rest."""
    while first:
        yield first.popleft()
    yield from rest


def _no_rows_error(first: deque[Chunk], spec: DatasetSpec) -> InputError:
    lines = [line for chunk in first for line in chunk.unreadable]
    return InputError(
        f"{spec.source} holds no rows",
        seen=f"{lines[0].reason}: {lines[0].line[:200]}" if lines else None,
        valid="at least one row",
        hint="check that the source is fully written, and that dataset.source and dataset.format "
        "are right",
    )
