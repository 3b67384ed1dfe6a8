"""Files of plain text, one row per file: `path` and `text`.

The row's key is the path relative to the folder before the glob's first wildcard. So a file's split
does not depend on its contents, and a whole file belongs to one split.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from posixpath import normpath, relpath
from typing import Any

import pyarrow as pa

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.find_files import File, FileSource
from millrace.models.data.sources.source import Chunk, Unreadable, require_columns

PATH, TEXT = "path", "text"
SCHEMA = pa.schema([(PATH, pa.string()), (TEXT, pa.string())])
CHUNK_BYTES = 8 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
"""Largest file, decompressed; a larger file is unreadable."""


@dataclass(frozen=True)
class TextSource(FileSource):
    """Files of UTF-8 text. An empty file is skipped, because there is nothing to learn from it.

    Attributes:
        root: the folder to which the rows' paths are relative.
    """

    format = "text"
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
            text = _read_text(file, name, before=len(rows))
            if isinstance(text, Unreadable):
                unreadable.append(text)
            elif text:
                rows.append((name, text))
                size += len(text)
            if size >= CHUNK_BYTES:
                yield _make_chunk(rows, unreadable)
                rows, unreadable, size = [], [], 0
        yield _make_chunk(rows, unreadable)


def with_defaults(spec: DatasetSpec) -> DatasetSpec:
    """Return the dataset's settings with `path` as the key, and `text` alone to learn from.

    Only settings that the pipeline file leaves out are filled in.
    """
    defaults: dict[str, Any] = {}
    if not spec.key and spec.target != PATH:
        defaults["key"] = (PATH,)
    if spec.features is None and spec.target == TEXT:
        defaults["features"] = ()
    return spec.model_copy(update=defaults)


def _read_text(file: File, name: str, before: int) -> str | Unreadable:
    with file.open() as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        return Unreadable(f"the file is larger than {MAX_BYTES // 2**20} MiB", name, before)
    try:
        return str(data, "utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError:
        return Unreadable("the file is not UTF-8 text", name, before)


def _make_chunk(rows: list[tuple[str, str]], unreadable: list[Unreadable]) -> Chunk:
    columns = [[name for name, _ in rows], [text for _, text in rows]]
    arrays = [pa.array(column, pa.string()) for column in columns]
    return Chunk(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), tuple(unreadable))
