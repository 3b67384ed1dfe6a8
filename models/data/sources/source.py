"""The base of all sources of rows: chunks of record batches, and a manifest for the lineage."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.models.common.arrays import Indices
from millrace.models.common.errors import (
    InputError,
    MillraceError,
    TransientError,
    list_names,
    nearest,
)
from millrace.models.config.dataset_spec import DatasetSpec

MAX_SEEN = 600
"""Most letters of another library's message; delta-rs writes one of many coloured lines."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
CHUNK_ROWS = 65_536
CHUNK_BYTES = 16 * 1024 * 1024
"""Largest chunk of a source with column types, so that wide rows take no more memory."""
TEXT = {b"millrace": b"text"}
"""Metadata of a field whose cells are text and whose type is not known yet."""


@dataclass(frozen=True)
class Unreadable:
    """A line or file that is not a row, such as ragged CSV or broken JSON.

    Attributes:
        reason: why it cannot be read.
        line: text of the line, or name of the file.
        before: number of rows of its chunk that come before it.
    """

    reason: str
    line: str
    before: int = 0


@dataclass(frozen=True)
class FileColumns:
    """The columns of a file of the source.

    Attributes:
        names: the columns that it has, as far as it was read.
        others: those of them that the source's first file does not have, or may not have.
    """

    names: tuple[str, ...]
    others: tuple[str, ...] = ()

    @classmethod
    def beside(cls, names: Sequence[str], first: Sequence[str]) -> "FileColumns":
        """Return the columns of a file of which the source's first file has the columns `first`."""
        known = set(first)
        return cls(tuple(names), tuple(name for name in names if name not in known))

    def joined(self, later: "FileColumns") -> "FileColumns":
        """Return the columns of what was read first and of what was read later."""
        if self == later:
            return self
        return FileColumns(
            tuple(dict.fromkeys(self.names + later.names)),
            tuple(dict.fromkeys(self.others + later.others)),
        )


@dataclass(frozen=True)
class Chunk:
    """Some rows of a source, at most about `CHUNK_ROWS`, as they were read.

    Attributes:
        rows: a record batch; its schema may differ from chunk to chunk.
        unreadable: the unreadable lines between the rows, in order.
        file: path of the file that they are in; empty if they are in no file, or in several.
        before: number of rows and unreadable lines of the file that come before the chunk.
        line_breaks: number of cells of a CSV file that have line breaks.
        columns: the columns of the file, also those that are not read; None if not known.
    """

    rows: pa.RecordBatch
    unreadable: tuple[Unreadable, ...] = ()
    file: str = ""
    before: int = 0
    line_breaks: int = 0
    columns: FileColumns | None = None

    def __len__(self) -> int:
        """Return the number of rows and unreadable lines."""
        return int(self.rows.num_rows) + len(self.unreadable)

    def row_positions(self) -> Indices:
        """Return each row's index in the chunk, counting unreadable lines too: int64, ascending."""
        rows = np.arange(self.rows.num_rows)
        before = np.array([line.before for line in self.unreadable], np.int64)
        return rows + np.searchsorted(before, rows, side="right")

    def unreadable_positions(self) -> Indices:
        """Return each unreadable line's index in the chunk, counting rows too: int64, ascending."""
        before = np.array([line.before for line in self.unreadable], np.int64)
        return before + np.arange(len(before))


@dataclass(frozen=True)
class SourceFile:
    """A file of the source, as an ingestion found it.

    Attributes:
        path: its path on its file system.
        size: its size in bytes.
        modified: when it was last written, nanoseconds since 1970. None if unknown, or so recent
            that another write could have the same time.
        sha256: digest of its content; None for a remote file, whose digest would need a download.
    """

    path: str
    size: int
    modified: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Source(ABC):
    """The base of all sources; the rows are read once and in order.

    Attributes:
        spec: the pipeline file's `dataset` part, with the settings that the source adds.
    """

    spec: DatasetSpec

    @property
    def schema(self) -> pa.Schema | None:
        """Arrow schema of all columns; None if only reading the rows shows which columns exist."""
        return None

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """Read the rows; memory does not grow with their number."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, without the unreadable lines."""
        return (chunk.rows for chunk in self.chunks())

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the manifest: format and files with sizes and digests, or a table's version."""

    def found(self) -> tuple[SourceFile, ...]:
        """Return the files that can be read by themselves, in order; none if there are no files."""
        return ()

    def only(self, files: Sequence[SourceFile]) -> "Source":
        """Return the source of some of the files of `found`."""
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def cut(self) -> Sequence["Source"]:
        """Return this source in pieces that can be read apart; their rows are its rows, in order.

        Where it is cut depends on the files alone.
        """
        return (self,)

    def local_files(self) -> tuple[Path, ...]:
        """Return the files and folders on this machine that are read; none if it is elsewhere."""
        return ()

    def read_files(self) -> tuple[SourceFile, ...]:
        """Return the files after they were read, with digests.

        Raises:
            TransientError: a file has changed since it was found.
        """
        return self.found()

    def is_same(self, old: SourceFile, new: SourceFile) -> bool:
        """Return whether a file has the content that it had when it was read."""
        return old == new


def used_columns(spec: DatasetSpec) -> tuple[str, ...] | None:
    """Return the names of the columns that the dataset stores; None for all columns."""
    if spec.features is None:
        return None
    return tuple(dict.fromkeys((*spec.key, *spec.features, spec.target, *spec.columns)))


def projection(spec: DatasetSpec, names: Sequence[str]) -> list[str]:
    """Return the columns of the source to read, in the source's order.

    Raises:
        InputError: the pipeline file names a column that the source does not have.
    """
    require_columns(spec, names)
    used = used_columns(spec)
    return [name for name in names if used is None or name in used]


def require_columns(spec: DatasetSpec, names: Sequence[str]) -> None:
    """Check that every column that the pipeline file names is among `names`.

    Raises:
        InputError: a column is missing, or the source has two columns of the same name.
    """
    require_distinct(names, spec.source)
    named = {
        "target": (spec.target,),
        "key": spec.key,
        "features": spec.features or (),
        "columns": tuple(spec.columns),
    }
    for part, columns in named.items():
        for column in columns:
            if column not in names:
                raise InputError(
                    f"dataset.{part} names a column that {spec.source} does not have",
                    seen=column,
                    valid=list_names(names),
                    hint=_separator_hint(names)
                    or nearest(column, list(names))
                    or "name one of the columns above",
                )


def _separator_hint(names: Sequence[str]) -> str | None:
    """Return what to do if the only name holds the names of several columns; None otherwise."""
    separators = [mark for mark in (";", "\t", "|") if len(names) == 1 and mark in names[0]]
    if not separators:
        return None
    mark = {"\t": "tabs"}.get(separators[0], f"{separators[0]!r}")
    return (
        f"the cells seem to be separated by {mark}: write the file with commas, and with points in "
        "its numbers (tabs are read in a file whose name ends with .tsv)"
    )


def require_distinct(names: Sequence[str], source: str) -> None:
    """Check that no two columns have the same name.

    Raises:
        InputError: two have.
    """
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise InputError(
            f"{source} has two columns of the same name",
            seen=", ".join(repeated),
            hint="rename one of them; the first line of a CSV file names its columns",
        )


def refuse_extension_types(schema: pa.Schema, source: str) -> None:
    """Refuse Arrow extension types, because some readers run the metadata of such types as code.

    Raises:
        InputError: a column, or a part of one, has an extension type.
    """
    for field in schema:
        if _is_extension(field):
            raise InputError(
                f"column {field.name!r} of {source} has an Arrow extension type",
                seen=field.type,
                valid="plain Arrow types; for a tensor, a list of floats",
                hint="write the column's storage array (array.storage in pyarrow) instead, or "
                "leave the column out of dataset.features",
            )


def slice_batches(
    batches: Iterable[pa.RecordBatch],
    file: str = "",
    before: int = 0,
    columns: FileColumns | None = None,
) -> Iterator[Chunk]:
    """Cut large batches into chunks, without a copy; leave out empty batches.

    Args:
        batches: the batches.
        file: path of the file that they are in.
        before: number of rows of the file that come before them.
        columns: the columns of the file.
    """
    for batch in batches:
        fitting = CHUNK_BYTES * batch.num_rows // max(1, batch.nbytes)
        rows = max(1, min(CHUNK_ROWS, fitting))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            yield Chunk(part, (), file, before + start, columns=columns)
        before += batch.num_rows


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Mark every column as text whose type is not known yet."""
    fields = [field.with_metadata(TEXT) for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def open_error(source: str, error: OSError) -> MillraceError:
    """Return the error for a source that cannot be opened; transient if it is on a network."""
    if "://" not in source:
        return read_error(source, error)
    return TransientError(
        f"{source} cannot be reached",
        seen=" ".join(_COLOUR.sub("", str(error)).split())[:MAX_SEEN],
        hint="check the network, and the store's name, region and credentials",
    )


def read_error(source: str, error: OSError) -> MillraceError:
    """Return the error for a source that cannot be read; transient if it is on a network."""
    if "://" in source:
        return TransientError(
            f"{source} could not be read to the end",
            seen=error,
            hint="check the network and the store's credentials; nothing was published",
        )
    return InputError(
        f"{source} cannot be read",
        seen=error,
        hint="check that the file is complete and that this user may read it",
    )


def _is_extension(field: pa.Field) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return True
    if b"ARROW:extension:name" in (field.metadata or {}):
        return True
    return any(_is_extension(field.type.field(i)) for i in range(field.type.num_fields))
