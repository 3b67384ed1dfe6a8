"""JSON Lines files, streamed block by block.

Arrow reads a block at once. A block that it refuses is read line by line: lines that are not
objects are put aside, and a column of mixed types becomes text to be cast later.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as arrow_json

from models.source import TEXT, Batched, Chunk, Unreadable, used_columns
from models.source_files import File
from models.specs.dataset import DatasetSpec

BLOCK_BYTES = 8 * 1024 * 1024


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
        return Chunk(_as_batch(_read_by_arrow(block)))
    except pa.ArrowInvalid:
        return _read_by_line(block)


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
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            unreadable.append(
                Unreadable("line is not a JSON object", line.decode(errors="replace"))
            )
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays, fields = [], []
    for name in names:
        array, metadata = _column([row.get(name) for row in rows])
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=metadata))
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    return Chunk(batch, tuple(unreadable))


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
