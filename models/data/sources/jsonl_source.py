"""JSON Lines files, streamed block by block.

Arrow reads a block at once. A block that it refuses is read line by line: lines that are not
objects are put aside, and a column of mixed types becomes text to be cast later.
"""

import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as arrow_json

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.source import TEXT, Batched, Chunk, Unreadable, used_columns

BLOCK_BYTES = 8 * 1024 * 1024
_SURROGATE = re.compile(rb"\\[uU][dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""Where half of a pair of UTF-16 may be, which is no text by itself."""


@dataclass(frozen=True)
class JsonlSource(Batched):
    """JSON Lines files: one object to a line."""

    spec: DatasetSpec
    files: tuple[File, ...]

    @property
    def schema(self) -> None:
        """Only reading tells."""
        return

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows of all files."""
        used = used_columns(self.spec)
        for file in self.files:
            for block in _blocks(file):
                chunk = read_block(block)
                if used is not None:
                    names = [name for name in chunk.rows.schema.names if name in used]
                    chunk = Chunk(chunk.rows.select(names), chunk.unreadable)
                yield chunk

    def describe(self) -> dict[str, Any]:
        """Return the files with sizes and digests."""
        return {"format": "jsonl", "files": [file.manifest() for file in self.files]}


def read_block(block: bytes) -> Chunk:
    """Read whole lines of JSON."""
    try:
        table = _read_by_arrow(block)
        table.validate(full=True)  # it does not look whether text is UTF-8
    except pa.ArrowInvalid:
        return _read_by_line(block)
    return Chunk(_as_batch(table))


def _read_by_arrow(block: bytes) -> pa.Table:
    options = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    table = arrow_json.read_json(io.BytesIO(block), read_options=options)
    dates = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not dates:
        return table
    # Text that looks like a date is text: casting a timestamp back would change it.
    schema = pa.schema([(name, pa.string()) for name in dates])
    return arrow_json.read_json(
        io.BytesIO(block),
        read_options=options,
        parse_options=arrow_json.ParseOptions(explicit_schema=schema),
    )


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)


def _read_by_line(block: bytes) -> Chunk:
    rows: list[dict[str, Any]] = []
    unreadable: list[Unreadable] = []
    for line in block.splitlines():
        if not line.strip():
            continue
        row = _object(line, before=len(rows))
        if isinstance(row, Unreadable):
            unreadable.append(row)
        else:
            rows.append(row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays, fields = [], []
    for name in names:
        array, metadata = _column([row.get(name) for row in rows])
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return Chunk(batch, tuple(unreadable))


def _object(line: bytes, before: int) -> dict[str, Any] | Unreadable:
    """Return the object that a line holds; text in it has to be UTF-8 when it is written."""
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


def _column(values: Sequence[Any]) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    try:
        return pa.array(values), None
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array([_as_text(value) for value in values], pa.string()), TEXT


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _blocks(file: File) -> Iterator[bytes]:
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
