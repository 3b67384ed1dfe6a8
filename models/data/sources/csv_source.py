"""CSV files, streamed.

Cells stay text: the held types are cast to later, cell by cell if need be, so that one bad cell is
one row in quarantine and not the end of the ingestion.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.source import Batched, Chunk, Unreadable, as_text, projection

BLOCK_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class CsvSource(Batched):
    """CSV files with a header each; `.tsv` is separated by tabs."""

    spec: DatasetSpec
    files: tuple[File, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The header of the first file, every column as text."""
        names = _header(self.files[0])
        return pa.schema([pa.field(name, pa.string()) for name in names])

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of all files."""
        wanted = projection(self.spec, self.schema.names)
        for file in self.files:
            yield from _read(file, wanted)

    def describe(self) -> dict[str, Any]:
        """Return the files with sizes and digests."""
        return {"format": "csv", "files": [file.manifest() for file in self.files]}


def _header(file: File) -> list[str]:
    with _opened(file, []) as reader:
        try:
            names: list[str] = reader.schema.names
        except UnicodeDecodeError as error:
            raise _not_csv(file, error) from error
        return names


def _read(file: File, wanted: Sequence[str]) -> Iterator[Chunk]:
    names = _header(file)
    ragged: list[csv.InvalidRow] = []
    rows = lines = 0
    with _opened(file, ragged, names, [name for name in wanted if name in names]) as reader:
        while True:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                break
            except pa.ArrowInvalid as error:
                raise _not_csv(file, error) from error
            among = _among(tuple(ragged), lines, rows, batch.num_rows)
            del ragged[: len(among)]  # the reader is ahead: the others are among later rows
            yield Chunk(as_text(batch), among)
            rows, lines = rows + batch.num_rows, lines + len(among)
    if ragged:
        yield Chunk(pa.record_batch({}), tuple(_unreadable(row, 0) for row in ragged))


def _among(
    ragged: Sequence[csv.InvalidRow], lines: int, rows: int, count: int
) -> tuple[Unreadable, ...]:
    """Return the ragged lines that come before the last of the next rows.

    Args:
        ragged: those that are not told of yet, in order.
        lines: how many were.
        rows: rows before.
        count: the next rows.
    """
    # Arrow numbers the rows from 1, which is the header, the ragged ones too.
    before = (row.number - 2 - lines - n - rows for n, row in enumerate(ragged))
    among = takewhile(lambda each: each[1] < count, zip(ragged, before, strict=True))
    return tuple(_unreadable(*each) for each in among)


def _unreadable(row: csv.InvalidRow, before: int) -> Unreadable:
    reason = f"line has {row.actual_columns} cells, not {row.expected_columns}"
    return Unreadable(reason, row.text, before)


def _opened(
    file: File,
    ragged: list[csv.InvalidRow],
    names: Sequence[str] = (),
    include: Sequence[str] = (),
) -> csv.CSVStreamingReader:
    def skip(row: csv.InvalidRow) -> str:
        ragged.append(row)
        return "skip"

    try:
        return csv.open_csv(
            file.open(),
            # With threads it does not number the rows.
            read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter="\t" if ".tsv" in file.path.lower() else ",",
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
        hint="mend the file, or set dataset.format to what it is",
    )
