"""The rows of a table that is small: every worker reads its own, with nothing in between."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.data import snapshots
from millrace.models.inference.features import Encoding

MOST_BYTES = 64 * 1024 * 1024
"""Parquet of a table that each worker reads whole to take its part."""


@dataclass(frozen=True)
class SnapshotShard:
    """The rows of one split that one worker learns from, as a Ray Data shard gives them.

    Every worker gets equally many, as `streaming_split(equal=True)` has it: ranks with more batches
    than others would wait for their collectives for ever.

    Attributes:
        snapshot: where the rows are; a place that every worker can read.
        shares: shares of the splits.
        split: the split.
        rank: takes the rows `rank`, `rank + world_size`, …
        world_size: how many workers share the rows; the last rows are left out that would not be
            enough for all.
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
        """Yield tables of `batch_size` rows, the last one of what is left, in the table's order.

        With a buffer all rows are shuffled, however small it is: they are in memory.
        """
        if batch_format != "pyarrow":
            raise ValueError(f"batches come as pyarrow tables, not as {batch_format!r}")
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
    """Return whether a worker can read the table whole, and keep `rows` of it as tensors."""
    stored = snapshots.stored_bytes(snapshot)
    return stored <= MOST_BYTES and rows * encoding.input.blank(1).nbytes <= tensor_bytes
