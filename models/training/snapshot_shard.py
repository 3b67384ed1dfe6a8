"""One worker's rows of a split, read straight from the snapshot's Parquet files.

Every worker reads only the row groups and the columns that it needs. Shuffled rows come from row
groups in random order, which are then mixed in a window in memory; so reading stays sequential
within a row group, and memory does not grow with the table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.data import snapshots
from millrace.models.data.schema import BUCKET
from millrace.models.data.split import split_bounds


@dataclass(frozen=True)
class Piece:
    """Some of a split's rows in one row group.

    Attributes:
        group: the row group.
        start: the first of them, counted among the split's rows in this row group.
        rows: how many of them.
    """

    group: ds.ParquetFileFragment
    start: int
    rows: int


@dataclass(frozen=True)
class SnapshotShard:
    """One worker's rows of a split: a range of them in the table's order.

    Attributes:
        snapshot: snapshot with the rows, at an address that every worker can read.
        shares: shares of the splits.
        split: train, validation or test.
        rank: rank of the worker.
        world_size: number of workers that share the rows.
        even: whether every worker gets equally many rows, and up to `world_size - 1` last rows are
            left out. Training needs this, because a rank with more batches than the others would
            wait for their collectives for ever.
    """

    snapshot: snapshots.Snapshot
    shares: SplitSpec
    split: Split
    rank: int = 0
    world_size: int = 1
    even: bool = True

    @property
    def rows(self) -> int:
        """Number of this worker's rows."""
        return sum(piece.rows for piece in self._pieces)

    def read(self, rows: int, seed: int | None = None) -> Iterator[pa.Table]:
        """Yield the features and the target in tables of `rows` rows; the last may be smaller.

        Args:
            rows: number of rows of a table.
            seed: seed of the order of the row groups, whose rows are then together in a table; None
                for the table's order.
        """
        pieces = list(self._pieces)
        if seed is not None:
            np.random.default_rng(seed).shuffle(pieces)  # type: ignore[arg-type]
        return _tables_of(map(self._read, pieces), rows)

    @cached_property
    def _pieces(self) -> tuple[Piece, ...]:
        bounds = split_bounds(self.shares)[self.split]
        counted = [
            each
            for file in snapshots.row_files(self.snapshot)
            for each in zip(file.split_by_row_group(), _count_rows(file, *bounds), strict=True)
        ]
        total = sum(count for _, count in counted)
        share = total // self.world_size
        is_last = self.rank == self.world_size - 1
        first = share * self.rank
        end = total if is_last and not self.even else first + share
        return tuple(_cut_range(counted, first, end))

    def _read(self, piece: Piece) -> pa.Table:
        schema = self.snapshot.schema
        wanted = snapshots.split_filter(self.split, self.shares)
        table = piece.group.to_table(columns=[*schema.features, schema.target], filter=wanted)
        return table.slice(piece.start, piece.rows)


def _count_rows(file: ds.ParquetFileFragment, low: int, high: int) -> list[int]:
    """Return how many rows of each row group have a bucket from `low` to below `high`."""
    bucket = file.to_table(columns=[BUCKET])[BUCKET].to_numpy()
    ends = np.cumsum([group.num_rows for group in file.row_groups], dtype=np.int64)
    inside = np.concatenate([[0], np.cumsum((bucket >= low) & (bucket < high))])
    counts: list[int] = np.diff(inside[ends], prepend=0).tolist()
    return counts


def _cut_range(
    counted: list[tuple[ds.ParquetFileFragment, int]], first: int, end: int
) -> Iterator[Piece]:
    """Yield the pieces with the rows from `first` to below `end` of all rows."""
    seen = 0
    for group, count in counted:
        start, stop = max(first - seen, 0), min(end - seen, count)
        if start < stop:
            yield Piece(group, start, stop - start)
        seen += count


def _tables_of(parts: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Yield the rows of tables of any size in tables of `rows` rows; the last may be smaller."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(map(len, waiting)) < rows:
            continue
        joined = pa.concat_tables(waiting)
        whole = len(joined) - len(joined) % rows
        for start in range(0, whole, rows):
            yield joined.slice(start, rows)
        waiting = [joined.slice(whole)]
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting)
