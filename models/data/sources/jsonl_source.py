"""JSON Lines files, streamed block by block.

Arrow reads a whole block at once. A block that Arrow refuses is read line by line: lines that are
not JSON objects are unreadable, and a column of mixed types becomes text, which is cast later.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as arrow_json

from millrace.models.data.sources.find_files import File, FileSource, naming
from millrace.models.data.sources.source import (
    TEXT,
    Chunk,
    FileColumns,
    Unreadable,
    used_columns,
)

BLOCK_BYTES = 8 * 1024 * 1024
_SURROGATE = re.compile(rb"\\[uU][dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Matches where a line may have a lone UTF-16 surrogate, which is not valid text."""


@dataclass(frozen=True)
class JsonlSource(FileSource):
    """JSON Lines files, with one object per line."""

    format = "jsonl"

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of all files."""
        used = used_columns(self.spec)
        for file in self.files:
            before = 0
            with naming(file):
                for block in _read_blocks(file):
                    chunk = read_block(block)
                    rows, names = chunk.rows, tuple(chunk.rows.schema.names)
                    columns = FileColumns(names, names if used is None else ())
                    if used is not None:
                        rows = rows.select([name for name in rows.schema.names if name in used])
                    yield Chunk(rows, chunk.unreadable, file.path, before, columns=columns)
                    before += len(chunk)


def read_block(block: bytes) -> Chunk:
    """Read a block of whole lines of JSON."""
    try:
        table = _read_by_arrow(block)
        table.validate(full=True)  # the reader does not check that text is UTF-8
    except pa.ArrowInvalid:
        return _read_by_line(block)
    batches = table.combine_chunks().to_batches()
    return Chunk(batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema))


def _read_by_arrow(block: bytes) -> pa.Table:
    options = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    table = arrow_json.read_json(io.BytesIO(block), read_options=options)
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dates:
        return table
    # Text that looks like a date stays text, because casting a timestamp back would change it.
    schema = pa.schema([(name, pa.string()) for name in dates])
    return arrow_json.read_json(
        io.BytesIO(block),
        read_options=options,
        parse_options=arrow_json.ParseOptions(explicit_schema=schema),
    )


def _read_by_line(block: bytes) -> Chunk:
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    for line in block.splitlines():
        if not line.strip():
            continue
        row = _read_object(line, before=len(rows))
        if isinstance(row, Unreadable):
            unreadable.append(row)
        else:
            rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays, fields = [], []
    for name in names:
        array, metadata = _make_column([row.get(name) for row in rows])
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return Chunk(batch, tuple(unreadable))


def _read_object(line: bytes, before: int) -> dict[str, Any] | Unreadable:
    """Return the object in a line; `Unreadable` if it is not an object or its text is not UTF-8."""
    shown = line.decode(errors="replace")
    try:
        row = json.loads(line)
        if _SURROGATE.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:
        return Unreadable("line holds text that is not UTF-8", shown, before)
    except (ValueError, RecursionError):
        return Unreadable("line is not a JSON object", shown, before)
    return row if isinstance(row, dict) else Unreadable("line is not a JSON object", shown, before)


def _make_column(values: Sequence[Any]) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    """Return values as an array (text if their types are mixed), and the metadata of its field."""
    try:
        return pa.array(values), None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        texts = [each if isinstance(each, str | None) else json.dumps(each) for each in values]
        return pa.array(texts, pa.string()), TEXT


def _read_blocks(file: File) -> Iterator[bytes]:
    """Read blocks that end at the end of a line."""
    rest = b""
    with file.open() as stream:
        while block := stream.read(BLOCK_BYTES):
            whole, newline, tail = (rest + block).rpartition(b"\n")
            if newline:
                yield whole
            rest = tail
    if rest.strip():
        yield rest
