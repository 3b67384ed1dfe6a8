"""The packed sequences of one split, as training reads them by position.

A packed sequence is several chunks in a row. A chunk is a document, or a part of one that is longer
than the context.

A split of a token table is copied once to a local folder, which is named by the table's
fingerprint. The copy is an uncompressed Arrow file, which is memory-mapped. So training reads
without the object store, and memory does not grow with the corpus, because the operating system can
drop the pages of a mapped file.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import ipc

from millrace.models.common.arrays import Array
from millrace.models.common.errors import WorkError
from millrace.models.config.dataset_spec import Split
from millrace.models.data.sources.arrow_source import scan_batches
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.language.corpus.documents import Ids, Mask
from millrace.models.language.corpus.token_table import TokenTable

Packed = tuple[Array, Sequence[int] | Array, Array | None]
"""Three values: `input_ids`, int32 `[tokens]`; the lengths of the chunks in order, whose sum is
`tokens`; and the loss mask, bool `[tokens]`, true for tokens that count (None if all count)."""

_COLUMNS = ["position", "input_ids", "lengths", "answer"]
_BATCH_BYTES = 4 * 1024 * 1024
_FILE, _INDEX = "sequences.arrow", "index.npy"


class Sequences(Protocol):
    """The packed sequences of one split; each worker gets a pickled copy of this object."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def sequence(self, position: int) -> Packed:
        """Return the sequence at a position in the split, counted from 0."""
        ...


@dataclass(frozen=True)
class StoredSequences:
    """The sequences of a split. Its pickle is small, because each worker opens the file itself.

    Attributes:
        uri: address of the token table.
        version: version of the token table.
        split: train, validation or test.
        rows: number of sequences.
        context: largest number of tokens in a sequence.
        folder: folder of the local copy, which is made when the first sequence is read.
    """

    uri: str
    version: int
    split: Split
    rows: int
    context: int
    folder: Path

    @classmethod
    def of(cls, table: TokenTable, split: Split, cache: Path) -> "StoredSequences":
        """Return the sequences of a split of a table.

        Args:
            table: the token table.
            split: train, validation or test.
            cache: local folder for copies; safe to delete while no training runs.
        """
        folder = cache / f"{table.fingerprint}-{split}"
        rows = table.splits[split].rows
        return cls(table.uri, table.version, split, rows, table.context, folder)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self.rows

    def sequence(self, position: int) -> tuple[Ids, list[int], Mask | None]:
        """Return `input_ids` int32 `[tokens]`, the lengths of its chunks, and the loss mask.

        The loss mask is bool `[tokens]`, true for tokens that count in the loss; None if all
        count. The arrays are read-only views of the file.

        Raises:
            IndexError: the split has no such position.
            WorkError: the local copy cannot be written, or the token table is damaged.
        """
        if not 0 <= position < self.rows:
            raise IndexError(position)
        opened = _open_file(self)
        batch, row = opened.index[position]
        _, ids, lengths, answer = opened.reader.get_batch(int(batch)).columns
        counted = answer[int(row)]
        return (
            ids[int(row)].values.to_numpy(),
            lengths[int(row)].as_py(),
            counted.values.to_numpy(zero_copy_only=False) if counted.is_valid else None,
        )


@dataclass(frozen=True)
class _Opened:
    reader: Any
    index: npt.NDArray[np.int64]


@lru_cache(maxsize=8)
def _open_file(sequences: StoredSequences) -> _Opened:
    if not sequences.folder.exists():
        _copy(sequences)
    reader = ipc.open_file(pa.memory_map(str(sequences.folder / _FILE)))
    return _Opened(reader, np.load(sequences.folder / _INDEX, mmap_mode="r"))


def _copy(sequences: StoredSequences) -> None:
    """Copy a split into a temporary folder, and rename the folder when the copy is complete."""
    cache = sequences.folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache, prefix=".copying-"))
    except OSError as error:
        raise _unwritable(cache, error) from error
    try:
        _write(sequences, made)
        os.rename(made, sequences.folder)
    except OSError as error:
        # If the folder exists, another process made the same copy first.
        if not sequences.folder.exists():
            raise _unwritable(cache, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(sequences: StoredSequences, folder: Path) -> None:
    dataset = dataset_of(DeltaTable(sequences.uri, version=sequences.version))
    wanted = pc.field("split") == sequences.split
    rows = max(1, _BATCH_BYTES // (4 * sequences.context))
    read_positions: list[npt.NDArray[np.int64]] = []
    schema = pa.schema([dataset.schema.field(name) for name in _COLUMNS])
    with ipc.new_file(str(folder / _FILE), schema) as writer:
        for batch in scan_batches(dataset, _COLUMNS, wanted, rows):
            if batch.num_rows:
                writer.write_batch(batch)
                read_positions.append(batch["position"].to_numpy())
    np.save(folder / _INDEX, _index(read_positions, sequences))


def _index(
    read_positions: list[npt.NDArray[np.int64]], sequences: StoredSequences
) -> npt.NDArray[np.int64]:
    """Return, for every position, the Arrow batch and the row in that batch, int64 `[rows, 2]`."""
    positions = np.concatenate([np.zeros(0, np.int64), *read_positions])
    if not np.array_equal(np.sort(positions), np.arange(sequences.rows)):
        raise WorkError(
            f"the token table {sequences.uri} is damaged",
            seen=f"{len(positions)} sequences of {sequences.split} in version {sequences.version}",
            valid=f"the positions 0 to {sequences.rows - 1}, each once",
            hint="delete the token table and run the pipeline again",
        )
    sizes = [len(place) for place in read_positions]
    index = np.empty((sequences.rows, 2), dtype=np.int64)
    index[positions, 0] = np.repeat(np.arange(len(sizes)), sizes)
    index[positions, 1] = np.concatenate([np.arange(size) for size in sizes])
    return index


def _unwritable(cache: Path, error: OSError) -> WorkError:
    return WorkError(
        f"the training sequences cannot be copied to {cache}",
        seen=error,
        hint="free disk space, check the permissions, or set MILLRACE_HOME to another disk",
    )
