"""Files of plain text: one row to a file, `path` and `text`.

The path, from the folder that the source's glob starts in, is the row's key. So a file's split does
not depend on what is in it, and a whole file is held out or none of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import normpath, relpath
from typing import Any

import pyarrow as pa

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.source import Batched, Chunk, Unreadable, require_columns

PATH, TEXT = "path", "text"
SCHEMA = pa.schema([(PATH, pa.string()), (TEXT, pa.string())])
CHUNK_BYTES = 8 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
"""Of one file, decompressed; a larger one is put aside."""


@dataclass(frozen=True)
class TextSource(Batched):
    """Files of UTF-8 text. An empty file holds nothing to learn from, and is no row.

    Attributes:
        spec: the dataset.
        files: the files.
        root: the folder that their paths start from.
    """

    spec: DatasetSpec
    files: tuple[File, ...]
    root: str

    @property
    def schema(self) -> pa.Schema:
        """`path` and `text`."""
        return SCHEMA

    def chunks(self) -> Iterator[Chunk]:
        """Read the files."""
        require_columns(self.spec, SCHEMA.names)
        rows: list[tuple[str, str]] = []
        unreadable: list[Unreadable] = []
        size = 0
        for file in self.files:
            name = relpath(normpath(file.path), normpath(self.root))
            read = _read(file, name, before=len(rows))
            if isinstance(read, Unreadable):
                unreadable.append(read)
            elif read:
                rows.append((name, read))
                size += len(read)
            if size >= CHUNK_BYTES:
                yield _chunk(rows, unreadable)
                rows, unreadable, size = [], [], 0
        yield _chunk(rows, unreadable)

    def describe(self) -> dict[str, Any]:
        """Return the files with sizes and digests."""
        return {"format": "text", "files": [file.manifest() for file in self.files]}


def with_defaults(spec: DatasetSpec) -> DatasetSpec:
    """Return the dataset with `path` for the key and nothing but the text to learn from.

    Only what the pipeline file leaves out is filled in.
    """
    defaults: dict[str, Any] = {}
    if not spec.key and spec.target != PATH:
        defaults["key"] = (PATH,)
    if spec.features is None and spec.target == TEXT:
        defaults["features"] = ()
    return spec.model_copy(update=defaults)


def _read(file: File, name: str, before: int) -> str | Unreadable:
    with file.open() as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return Unreadable(f"the file is larger than {MAX_BYTES // 2**20} MiB", name, before)
    try:
        return str(data, "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        return Unreadable("the file is not UTF-8 text", name, before)


def _chunk(rows: list[tuple[str, str]], unreadable: list[Unreadable]) -> Chunk:
    columns = [[name for name, _ in rows], [text for _, text in rows]]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return Chunk(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), tuple(unreadable))
