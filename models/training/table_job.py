"""Training on the rows of a snapshot: which rows each worker reads, and how."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import ray.data
import ray.train
from ray.data.expressions import col

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.data import snapshots
from millrace.models.data.schema import BUCKET
from millrace.models.data.split import split_bounds
from millrace.models.inference.features import Encoding
from millrace.models.training.batches import Shard
from millrace.models.training.train_job import TrainJob

TRAIN: Split = "train"
VALIDATION: Split = "validation"
BLOCK_ROWS = 65_536
MOST_BYTES = 64 * 1024 * 1024
"""Largest table, in bytes of Parquet, that each worker reads completely to select its own rows."""


@dataclass(frozen=True)
class Table:
    """The rows to train and validate on.

    Attributes:
        snapshot: snapshot with the rows, at an address that every worker can read.
        shares: shares of the splits.
    """

    snapshot: snapshots.Snapshot
    shares: SplitSpec


class TableJob(TrainJob):
    """A training job on the rows of a table.

    Every worker reads a small table itself; Ray Data streams a large one.

    Attributes:
        table: the rows to train and validate on.
        encoding: encoding of rows to tensors.
        train_rows: number of rows in the train split, over all workers.
    """

    table: Table
    encoding: Encoding
    train_rows: int

    @property
    @abstractmethod
    def cache_bytes(self) -> int:
        """Bytes of encoded rows that a worker may keep in memory; larger tables are streamed."""

    @cached_property
    def is_streamed(self) -> bool:
        """Whether Ray Data streams the rows."""
        rows = -(-self.train_rows // self.num_workers)
        return not is_small(self.table.snapshot, self.encoding, rows, self.cache_bytes)

    def datasets(self) -> Mapping[str, ray.data.Dataset]:
        """Return the splits that Ray Data streams; empty for a small table."""
        if not self.is_streamed:
            return {}
        return {
            TRAIN: _rows(self.table, TRAIN, self.num_workers),
            VALIDATION: _rows(self.table, VALIDATION, 1),
        }

    def shard(self, split: Split, rank: int = 0, world_size: int = 1) -> Shard:
        """Return one worker's part of a split; with the default arguments, the whole split.

        If Ray Data streams the rows, it has split them already, and `rank` is ignored.
        """
        if self.is_streamed:
            shard: Shard = ray.train.get_dataset_shard(split)
            return shard
        return SnapshotShard(self.table.snapshot, self.table.shares, split, rank, world_size)


def _rows(table: Table, split: Split, workers: int) -> ray.data.Dataset:
    snapshot, (low, high) = table.snapshot, split_bounds(table.shares)[split]
    # By default Ray Data makes hundreds of blocks, each read by a process that takes longer to
    # start than a small table takes to read.
    blocks = max(workers, snapshot.rows // BLOCK_ROWS)
    rows = ray.data.read_parquet(snapshots.files(snapshot), override_num_blocks=blocks)
    rows = rows.filter(expr=(col(BUCKET) >= low) & (col(BUCKET) < high))
    return rows.select_columns([*snapshot.schema.features, snapshot.schema.target])


@dataclass(frozen=True)
class SnapshotShard:
    """One worker's rows of a split, with the interface of a Ray Data shard.

    Every worker gets equally many rows, as with `streaming_split(equal=True)`, because a rank with
    more batches than the others would wait for their collectives for ever.

    Attributes:
        snapshot: snapshot with the rows, at an address that every worker can read.
        shares: shares of the splits.
        split: train, validation or test.
        rank: rank of the worker, which gets the rows `rank`, `rank + world_size`, …
        world_size: number of workers that share the rows; up to `world_size - 1` last rows are left
            out.
    """

    snapshot: snapshots.Snapshot
    shares: SplitSpec
    split: Split
    rank: int = 0
    world_size: int = 1

    def iter_batches(
        self,
        *,
        batch_size: int,
        batch_format: str = "pyarrow",
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield tables of `batch_size` rows (the last may be smaller) in the table's order.

        With a shuffle buffer of any size all rows are shuffled, because they are in memory.
        """
        if batch_format != "pyarrow":
            raise ValueError(f"batch_format must be 'pyarrow', not {batch_format!r}")
        own = self._rows()
        if local_shuffle_buffer_size is not None:
            own = own.take(np.random.default_rng(local_shuffle_seed).permutation(len(own)))
        for start in range(0, len(own), batch_size):
            yield own.slice(start, batch_size)

    def _rows(self) -> pa.Table:
        schema = self.snapshot.schema
        columns = [*schema.features, schema.target]
        batches = snapshots.scan(self.snapshot, self.split, self.shares, columns=columns)
        rows = pa.Table.from_batches(list(batches))
        most = len(rows) - len(rows) % self.world_size
        return rows.take(np.arange(self.rank, most, self.world_size))


def is_small(
    snapshot: snapshots.Snapshot, encoding: Encoding, rows: int, tensor_bytes: int
) -> bool:
    """Return whether a worker can read the whole table, and keep `rows` of its rows as tensors."""
    stored = snapshots.stored_bytes(snapshot)
    return stored <= MOST_BYTES and rows * encoding.input.blank(1).nbytes <= tensor_bytes
