"""Batches for the training loop from one worker's shard of the train split.

A shard that fits into `CACHE_BYTES` is read once and kept as tensors, so later epochs need no input
pipeline. A larger shard is streamed again in every epoch and shuffled in a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from millrace.models.inference.features import Encoding

CACHE_BYTES = 256 * 1024 * 1024
_READ_ROWS = 4096
_WINDOW_BATCHES = 16

Batch = tuple[Tensor, Tensor]


class Shard(Protocol):
    """The methods of a Ray Data `DataIterator` that training uses."""

    def iter_batches(
        self,
        *,
        batch_size: int,
        batch_format: str,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield tables of `batch_size` rows."""
        ...


@dataclass
class ShardBatches:
    """Shuffled batches of one worker's shard, epoch after epoch.

    Attributes:
        shard: this worker's rows of the train split.
        encoding: encoding of rows to tensors.
        batch_size: number of rows of a batch.
        seed: seed of the order; the epoch and the rank are mixed in.
        rank: rank of this worker.
        cache_bytes: largest size of a shard that is kept in memory, in bytes.
    """

    shard: Shard
    encoding: Encoding
    batch_size: int
    seed: int
    rank: int
    cache_bytes: int = CACHE_BYTES
    _kept: Batch | None = field(default=None, init=False)
    _too_large: bool = field(default=False, init=False)

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yield the batches of an epoch: `(features [rows, raw_width], target [rows])`.

        Texts of similar length share a batch, and are padded to the longest of their batch.

        If `batch_size` is 2 or more, a last batch of one row is left out, because batch norm cannot
        compute a variance of one row.
        """
        if self._kept is None and not self._too_large:
            self._keep()
        seed = self._seed_of(number)
        batches = self._streamed(seed) if self._kept is None else self._shuffled(self._kept, seed)
        least = min(self.batch_size, 2)
        return (batch for batch in batches if len(batch[1]) >= least)

    def _seed_of(self, epoch: int) -> int:
        seeds = np.random.SeedSequence((self.seed, epoch, self.rank))
        return int(seeds.generate_state(1)[0])

    def _keep(self) -> None:
        features, targets, size = [], [], 0
        for table in self.shard.iter_batches(batch_size=_READ_ROWS, batch_format="pyarrow"):
            features.append(self.encoding.encode(table))
            targets.append(self.encoding.encode_target(table))
            size += features[-1].nbytes
            if size > self.cache_bytes:
                self._too_large = True
                return
        if features:
            everything = (np.concatenate(features), np.concatenate(targets))
            self._kept = (torch.from_numpy(everything[0]), torch.from_numpy(everything[1]))

    def _shuffled(self, kept: Batch, seed: int) -> Iterator[Batch]:
        order = torch.Generator().manual_seed(seed)
        return self._cut(kept, torch.randperm(len(kept[1]), generator=order), order)

    def _streamed(self, seed: int) -> Iterator[Batch]:
        order, is_text = torch.Generator().manual_seed(seed), self.encoding.tokenizer is not None
        for table in self.shard.iter_batches(
            batch_size=self.batch_size * (_WINDOW_BATCHES if is_text else 1),
            batch_format="pyarrow",
            local_shuffle_buffer_size=self.batch_size * _WINDOW_BATCHES,
            local_shuffle_seed=seed,
        ):
            read = (self.encoding.encode(table), self.encoding.encode_target(table))
            window = (torch.from_numpy(read[0]), torch.from_numpy(read[1]))
            yield from self._cut(window, torch.arange(len(window[1])), order)

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


def bucketed(
    positions: Tensor, lengths: Tensor, batch_size: int, order: torch.Generator
) -> list[Tensor]:
    """Return batches of positions whose texts have similar lengths, in random order.

    Only windows of `_WINDOW_BATCHES` batches are sorted by length, so the order stays random.
    """
    batches: list[Tensor] = []
    window = batch_size * _WINDOW_BATCHES
    for start in range(0, len(positions), window):
        by_length = lengths[start : start + window].argsort(stable=True)
        batches += torch.split(positions[start : start + window][by_length], batch_size)
    return [batches[at] for at in torch.randperm(len(batches), generator=order).tolist()]
