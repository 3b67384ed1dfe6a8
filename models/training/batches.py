"""Batches for the training loop from one worker's shard of a split.

A shard that fits into `CACHE_BYTES` is read once and kept as tensors, so later epochs need no input
pipeline. A larger shard is read again in every epoch and shuffled in windows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from millrace.models.common.ahead import read_ahead
from millrace.models.common.errors import WorkError
from millrace.models.config.training_spec import DEFAULT_BATCH, DEFAULT_RATE
from millrace.models.inference.features import Encoding

CACHE_BYTES = 256 * 1024 * 1024
WINDOW_BYTES = 32 * 1024 * 1024
"""Size of the window in which the rows of a large shard are shuffled, as tensors."""
LEAST_BATCHES = 4
"""Fewest batches of a window, if rows are not texts."""
BUCKET_BATCHES = 16
"""Texts are sorted by length within this many batches."""

STEPS = 500
"""Steps of an epoch for which the batch size of a large table is chosen."""
MOST_ROWS, MOST_BYTES = 4096, 1024 * 1024
"""Largest batch that is chosen, as rows and as their tensor."""
MOST_FASTER = 4.0
"""Largest factor on the learning rate of a batch that was chosen."""

Batch = tuple[Tensor, Tensor]


def choose_batch_size(rows: int, row_bytes: int) -> int:
    """Return the batch size for a worker with so many rows, a power of two.

    It is 64 for up to 64,000 rows. Steps of 64 rows of a large table would cost more than what is
    computed in them, and would not be needed to learn it.

    Args:
        rows: number of the worker's rows.
        row_bytes: size of a row's tensor; large rows, such as images, keep the default.
    """
    size = DEFAULT_BATCH
    while 2 * size * STEPS <= rows and 2 * size <= MOST_ROWS and 2 * size * row_bytes <= MOST_BYTES:
        size *= 2
    return size


def choose_learning_rate(batch_size: int) -> float:
    """Return the peak learning rate for a batch that was chosen.

    It grows with the square root of the batch, so that fewer steps learn as much: Malladi et al.
    2022 (2205.10287), "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms".
    """
    factor: float = (batch_size / DEFAULT_BATCH) ** 0.5
    return DEFAULT_RATE * min(factor, MOST_FASTER)


class Shard(Protocol):
    """One worker's rows of a split."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        ...

    def read(self, rows: int, seed: int | None = None) -> Iterator[pa.Table]:
        """Yield tables of `rows` rows, in an order by `seed`; None for the table's order."""
        ...


@dataclass
class ShardBatches:
    """Batches of one worker's shard, epoch after epoch.

    Attributes:
        shard: this worker's rows.
        encoding: encoding of rows to tensors.
        batch_size: number of rows of a batch.
        seed: seed of the order; the epoch and the rank are mixed in.
        rank: rank of this worker.
        cache_bytes: largest size of a shard that is kept in memory, in bytes.
        waited: seconds that callers have waited for rows to be read.
    """

    shard: Shard
    encoding: Encoding
    batch_size: int
    seed: int = 0
    rank: int = 0
    cache_bytes: int = CACHE_BYTES
    waited: float = field(default=0.0, init=False)
    _kept: Batch | None = field(default=None, init=False)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield an epoch's shuffled batches: `(features [rows, raw_width], target [rows])`.

        Texts of similar length share a batch, and are padded to the longest of their batch.

        If `batch_size` is 2 or more, a last batch of one row is left out, because batch norm cannot
        compute a variance of one row.
        """
        seed, least = self._seed_of(number), min(self.batch_size, 2)
        order = torch.Generator().manual_seed(seed)
        for window in self._windows(seed):
            positions = torch.randperm(len(window[1]), generator=order)
            for batch in self._cut(window, positions, order):
                if len(batch[1]) >= least:
                    yield batch

    def in_order(self) -> Iterator[Batch]:
        """Yield batches in the table's order; texts are padded to the longest of their batch."""
        trimmed = self.encoding.input.trimmed
        for features, target in self._windows(None):
            for start in range(0, len(target), self.batch_size):
                part = slice(start, start + self.batch_size)
                yield torch.from_numpy(trimmed(features[part].numpy())), target[part]

    def _seed_of(self, epoch: int) -> int:
        seeds = np.random.SeedSequence((self.seed, epoch, self.rank))
        return int(seeds.generate_state(1)[0])

    def _windows(self, seed: int | None) -> Iterator[Batch]:
        """Yield the rows as tensors: all at once if they are kept, or in windows."""
        row_bytes = self.encoding.input.blank(1).nbytes
        least = LEAST_BATCHES if self.encoding.tokenizer is None else BUCKET_BATCHES
        batches = max(least, WINDOW_BYTES // (row_bytes * self.batch_size))
        rows = batches * self.batch_size
        if self.shard.rows * row_bytes > self.cache_bytes:
            yield from self._timed(self._read(rows, seed))
            return
        if self._kept is None:
            self._kept = _gather(self._timed(self._read(rows, None)), self.shard.rows)
        if self._kept is not None:
            yield self._kept

    def _read(self, rows: int, seed: int | None) -> Iterator[Batch]:
        return read_ahead(map(self._encode, self.shard.read(rows, seed)))

    def _encode(self, table: pa.Table) -> Batch:
        features, target = self.encoding.encode(table), self.encoding.encode_target(table)
        return torch.from_numpy(features), torch.from_numpy(target)

    def _timed(self, windows: Iterator[Batch]) -> Iterator[Batch]:
        """Yield windows, and count the seconds until each of them is there."""
        while True:
            began = time.perf_counter()
            window = next(windows, None)
            self.waited += time.perf_counter() - began
            if window is None:
                return
            yield window

    def _cut(self, kept: Batch, positions: Tensor, order: torch.Generator) -> Iterator[Batch]:
        """Yield batches of `kept` at shuffled positions; texts are bucketed by length."""
        read = self.encoding.input
        if read.padding is None:
            for part in torch.split(positions, self.batch_size):
                yield kept[0][part], kept[1][part]
            return
        lengths = torch.from_numpy(read.lengths(kept[0].numpy()))
        for part in bucketed(positions, lengths[positions], self.batch_size, order):
            tokens = read.trimmed(kept[0][part].numpy())
            yield torch.from_numpy(tokens), kept[1][part]


def _gather(windows: Iterator[Batch], rows: int) -> Batch | None:
    """Return the rows of all windows as one batch; None if there are no windows.

    Each window is copied as it comes: to join them at the end would take twice the memory.

    Raises:
        WorkError: there are fewer or more rows than promised.
    """
    first = next(windows, None)
    if first is None:
        return None
    kept = [torch.empty((rows, *each.shape[1:]), dtype=each.dtype) for each in first]
    start = 0
    for window in chain([first], windows):
        end = start + len(window[1])
        if end > rows:
            raise _other_rows(end, rows)
        for whole, part in zip(kept, window, strict=True):
            whole[start:end] = part
        start = end
    if start != rows:  # the rest of the tensors is whatever was in memory
        raise _other_rows(start, rows)
    return kept[0], kept[1]


def _other_rows(read: int, promised: int) -> WorkError:
    return WorkError(
        "the snapshot has other rows than it had when the training began",
        seen=f"{read} rows",
        valid=f"{promised} rows, as they were counted",
        hint="run again with `millrace run`, which trains on the newest snapshot",
    )


def bucketed(
    positions: Tensor, lengths: Tensor, batch_size: int, order: torch.Generator
) -> list[Tensor]:
    """Return batches of positions whose texts have similar lengths, in random order.

    Only windows of `BUCKET_BATCHES` batches are sorted by length, so the order stays random.
    """
    batches: list[Tensor] = []
    window = batch_size * BUCKET_BATCHES
    for start in range(0, len(positions), window):
        by_length = lengths[start : start + window].argsort(stable=True)
        batches += torch.split(positions[start : start + window][by_length], batch_size)
    return [batches[at] for at in torch.randperm(len(batches), generator=order).tolist()]
