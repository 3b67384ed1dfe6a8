"""Batches for the training loop from one worker's shard of the train split.

A shard is streamed through Ray Data once. While it fits into `CACHE_BYTES` it is kept as tensors,
so that later epochs cost no input pipeline at all; a larger one is streamed again every epoch and
shuffled in a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from models.features import Encoding

CACHE_BYTES = 256 * 1024 * 1024
_READ_ROWS = 4096
_WINDOW_BATCHES = 16

Batch = tuple[Tensor, Tensor]


class Shard(Protocol):
    """The part of a Ray Data `DataIterator` that is used."""

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
        shard: rows of the train split that this worker learns from.
        encoding: rows to tensors.
        batch_size: rows of a batch.
        seed: seed of the order; the epoch and the rank are mixed in.
        rank: rank of this worker.
        cache_bytes: how large a shard may be to be kept in memory.
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
        """Yield `(features [rows, raw_width], target [rows])`.

        A last batch of one row is left out, where batches are of more: one row alone has no
        variance for batch norm to work with.
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
        places_of_all = torch.randperm(len(kept[1]), generator=order)
        for places in torch.split(places_of_all, self.batch_size):
            yield kept[0][places], kept[1][places]

    def _streamed(self, seed: int) -> Iterator[Batch]:
        for table in self.shard.iter_batches(
            batch_size=self.batch_size,
            batch_format="pyarrow",
            local_shuffle_buffer_size=self.batch_size * _WINDOW_BATCHES,
            local_shuffle_seed=seed,
        ):
            features = torch.from_numpy(self.encoding.encode(table))
            yield features, torch.from_numpy(self.encoding.encode_target(table))
