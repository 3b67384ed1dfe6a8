"""The base of all sources of rows: chunks of record batches, and a manifest for the lineage."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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

CHUNK_ROWS = 65_536
TEXT = {b"millrace": b"text"}
"""Metadata of a field whose cells are text, and whose type has yet to be inferred."""


@dataclass(frozen=True)
class Unreadable:
    """A line that is not a row: ragged CSV, or not JSON.

    Attributes:
        reason: why.
        line: its text.
        before: how many rows of its chunk come before it.
    """

    reason: str
    line: str
    before: int = 0


@dataclass(frozen=True)
class Chunk:
    """Some rows of a source, at most about `CHUNK_ROWS`, as they were read.

    Attributes:
        rows: a record batch; its schema may differ from chunk to chunk.
        unreadable: the unreadable lines between them, in order.
    """

    rows: pa.RecordBatch
    unreadable: tuple[Unreadable, ...] = ()

    def __len__(self) -> int:
        """Return how many rows and unreadable lines there are."""
        return int(self.rows.num_rows) + len(self.unreadable)

    def places(self) -> Indices:
        """Return the indices of the rows among rows and unreadable lines: int64, ascending."""
        rows = np.arange(self.rows.num_rows)
        before = np.array([line.before for line in self.unreadable], np.int64)
        return rows + np.searchsorted(before, rows, side="right")

    def unreadable_places(self) -> Indices:
        """Return the indices of the unreadable lines likewise."""
        before = np.array([line.before for line in self.unreadable], np.int64)
        return before + np.arange(len(before))


@dataclass(frozen=True)
class Source(ABC):
    """Rows from somewhere, read once and in order.

    Attributes:
        spec: the pipeline file's `dataset` part, with what the source adds to it.
    """

    spec: DatasetSpec

    @property
    def schema(self) -> pa.Schema | None:
        """Every column of the source; None if that takes reading the rows."""
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


def used_columns(spec: DatasetSpec) -> tuple[str, ...] | None:
    """Return the columns that the dataset stores, or None for all."""
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
        InputError: one is not, or the source has a name twice.
    """
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise InputError(
            f"{spec.source} has two columns of one name",
            seen=", ".join(repeated),
            hint="rename one of them",
        )
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
                    hint=nearest(column, list(names)) or "name one of the columns above",
                )


def refuse_extension_types(schema: pa.Schema, source: str) -> None:
    """Refuse Arrow extension types: some readers run their metadata as code.

    Raises:
        InputError: a column, or a part of one, has an extension type.
    """
    for field in schema:
        if _is_extension(field):
            raise InputError(
                f"column {field.name!r} of {source} has an Arrow extension type",
                seen=field.type,
                valid="plain Arrow types; a tensor as a list of floats",
                hint="write the column's storage instead, e.g. array.storage, or leave it out of "
                "dataset.features",
            )


def slice_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
    """Cut large batches into chunks, without a copy; empty ones are left out."""
    for batch in batches:
        for start in range(0, batch.num_rows, CHUNK_ROWS):
            yield Chunk(batch.slice(start, CHUNK_ROWS))


def as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Mark every column as text whose type has yet to be inferred."""
    fields = [field.with_metadata(TEXT) for field in batch.schema]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


def read_error(source: str, error: OSError) -> MillraceError:
    """Return the error for a source that cannot be read; transient if it is on a network."""
    if "://" in source:
        return TransientError(
            f"reading {source} broke off",
            seen=error,
            hint="check the network and the store's credentials; nothing was published",
        )
    return InputError(
        f"{source} cannot be read",
        seen=error,
        hint="check that the file is whole and that this user may read it",
    )


def _is_extension(field: pa.Field) -> bool:
    if isinstance(field.type, pa.BaseExtensionType):
        return True
    if b"ARROW:extension:name" in (field.metadata or {}):
        return True
    return any(_is_extension(field.type.field(i)) for i in range(field.type.num_fields))
