"""CSV files, streamed.

Cells stay text here. They are cast to the column types later, cell by cell if necessary, so that a
bad cell puts its row into quarantine and does not stop the ingestion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv

from millrace.models.common.arrays import Indices
from millrace.models.common.errors import InputError
from millrace.models.data.sources.csv_quotes import REASON, QuoteCheck
from millrace.models.data.sources.find_files import File, FileSource, naming
from millrace.models.data.sources.source import (
    Chunk,
    FileColumns,
    Unreadable,
    as_text,
    projection,
    require_distinct,
)

BLOCK_BYTES = 8 * 1024 * 1024
HEADER_BYTES = 64 * 1024
"""Bytes of a file that are parsed for its header."""


@dataclass(frozen=True)
class CsvSource(FileSource):
    """CSV files, each with a header; `.tsv` is separated by tabs."""

    format = "csv"

    @cached_property
    def schema(self) -> pa.Schema:
        """The header of the first file, every column as text."""
        with naming(self.first):
            return pa.schema([(name, pa.string()) for name in _read_header(self.first)])

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of all files."""
        wanted = projection(self.spec, self.schema.names)
        for file in self.files:
            with naming(file):
                yield from _read(file, wanted, self.schema.names)


def _read_header(file: File) -> list[str]:
    """Return the names in a file's first row, without parsing a whole block of rows."""
    try:
        return _names_in(file, HEADER_BYTES)
    except InputError:  # the first rows may be longer
        return _names_in(file, BLOCK_BYTES)


def _names_in(file: File, block_bytes: int) -> list[str]:
    with _open(file, [], block_bytes=block_bytes) as reader:
        try:
            return list(reader.schema.names)
        except UnicodeDecodeError as error:
            raise _not_csv(file, error) from error


def _read(file: File, wanted: Sequence[str], first: Sequence[str]) -> Iterator[Chunk]:
    names = _read_header(file)
    require_distinct(names, file.path)
    columns = FileColumns.beside(names, first)
    ragged: list[csv.InvalidRow] = []
    rows, lines, quotes = 0, 0, QuoteCheck(file, _delimiter(file))
    with _open(file, ragged, names, [name for name in wanted if name in names]) as reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            except pa.ArrowInvalid as error:
                raise _not_csv(file, error) from error
            unreadable = _take_ragged(tuple(ragged), lines, rows, batch.num_rows)
            del ragged[: len(unreadable)]  # the reader is ahead: the rest belongs to later rows
            broken, refused = quotes.look_at(batch)
            chunk = Chunk(as_text(batch), unreadable, file.path, rows + lines, broken, columns)
            yield _without(chunk, refused) if len(refused) else chunk
            rows, lines = rows + batch.num_rows, lines + len(unreadable)
    if ragged:
        last = tuple(_unreadable(row, 0) for row in ragged)
        yield Chunk(pa.record_batch({}), last, file.path, rows + lines)


def _take_ragged(
    ragged: Sequence[csv.InvalidRow], lines: int, rows: int, count: int
) -> tuple[Unreadable, ...]:
    """Return the ragged lines that come before the last row of the next chunk.

    Args:
        ragged: ragged lines that are not in a chunk yet, in order.
        lines: number of ragged lines in earlier chunks.
        rows: number of rows in earlier chunks.
        count: number of rows in the next chunk.
    """
    # Arrow numbers all lines, ragged ones too, and starts with 1 for the header.
    before = (row.number - 2 - lines - n - rows for n, row in enumerate(ragged))
    taken = takewhile(lambda each: each[1] < count, zip(ragged, before, strict=True))
    return tuple(_unreadable(*each) for each in taken)


def _unreadable(row: csv.InvalidRow, before: int) -> Unreadable:
    reason = f"line has {row.actual_columns} cells, not {row.expected_columns}"
    return Unreadable(reason, row.text, before)


def _without(chunk: Chunk, refused: Indices) -> Chunk:
    """Return a chunk with some rows, by their index, made unreadable; the order stays."""
    rows = chunk.rows.take(pa.array(refused)).to_pylist()
    shown = [",".join(cell or "" for cell in row.values()) for row in rows]
    lines = [*chunk.unreadable, *(Unreadable(REASON, text) for text in shown)]
    positions = np.concatenate([chunk.unreadable_positions(), chunk.row_positions()[refused]])
    order = np.argsort(positions)
    return replace(
        chunk,
        rows=chunk.rows.filter(pa.array(~np.isin(np.arange(chunk.rows.num_rows), refused))),
        unreadable=tuple(
            replace(lines[place], before=int(positions[place]) - number)
            for number, place in enumerate(order)
        ),
    )


def _delimiter(file: File) -> str:
    return "\t" if ".tsv" in file.path.lower() else ","


def _open(
    file: File,
    ragged: list[csv.InvalidRow],
    names: Sequence[str] = (),
    include: Sequence[str] = (),
    block_bytes: int | None = None,
) -> csv.CSVStreamingReader:
    def skip(row: csv.InvalidRow) -> str:
        ragged.append(row)
        return "skip"

    try:
        return csv.open_csv(
            file.open(),
            # With threads Arrow does not number the lines.
            read_options=csv.ReadOptions(block_size=block_bytes or BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=_delimiter(file),
                newlines_in_values=True,
                invalid_row_handler=skip,
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                include_columns=list(include),
                strings_can_be_null=True,
                null_values=[""],
            ),
        )
    except pa.ArrowInvalid as error:
        raise _not_csv(file, error) from error


def _not_csv(file: File, error: Exception) -> InputError:
    return InputError(
        f"{file.path} cannot be read as CSV",
        seen=error,
        valid="UTF-8 text with a header line, cells separated by commas (tabs in a .tsv)",
        hint="fix the file, or set dataset.format to its format",
    )
