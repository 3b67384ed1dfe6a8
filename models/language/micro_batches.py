"""Micro-batches of packed sequences.

Positions count from 0 in every chunk (a document, or a part of one that is longer than the
context), and no attention mask is given. transformers then masks attention across chunks: it treats
every break in `position_ids` as the beginning of another sequence
(`masking_utils.find_packed_sequence_indices`), if it is called without a cache (`use_cache=False`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from millrace.models.common.arrays import Array
from millrace.models.language.corpus.sequences import Packed

IGNORED = -100
"""The label of a token after which nothing is predicted."""
MULTIPLE = 8
"""Batches are padded to a multiple of this many tokens, which suits tensor cores."""


@dataclass(frozen=True)
class MicroBatch:
    """The tokens of one forward pass.

    Attributes:
        input_ids: int64 `[rows, width]`.
        position_ids: int64 `[rows, width]`, counted from 0 in every chunk.
        labels: int64 `[rows, width]`, the token to predict after each token, or `IGNORED`.
        tokens: number of tokens that are not padding.
        answers: number of labels that are not `IGNORED`.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    tokens: int
    answers: int

    def on(self, device: torch.device) -> "MicroBatch":
        """Return the batch on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


def micro_batch(sequences: Sequence[Packed], padding: int, multiple: int = MULTIPLE) -> MicroBatch:
    """Return sequences as one padded batch.

    Without sequences the batch is one row of padding. The worker then still joins the collectives
    of the other workers, and learns nothing.

    Args:
        sequences: the packed sequences.
        padding: the id of the padding token.
        multiple: the width of the batch is a multiple of this.
    """
    longest = max((len(ids) for ids, _, _ in sequences), default=1)
    shape = (max(len(sequences), 1), -(-longest // multiple) * multiple)
    input_ids = np.full(shape, padding, np.int64)
    position_ids = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    for row, (ids, lengths, answer) in enumerate(sequences):
        width = len(ids)
        input_ids[row, :width] = ids
        # Padding continues the last chunk. The tokens of the chunk cannot see the padding after
        # them. A row of one chunk then needs no mask. Positions stay below the length of the
        # longest sequence.
        filled = positions_of([*lengths[:-1], lengths[-1] + shape[1] - width])
        position_ids[row] = np.minimum(filled, longest - 1)
        labels[row, :width] = labels_of(ids, lengths, answer)
    return MicroBatch(
        torch.from_numpy(input_ids),
        torch.from_numpy(position_ids),
        torch.from_numpy(labels),
        tokens=sum(len(ids) for ids, _, _ in sequences),
        answers=int((labels != IGNORED).sum()),
    )


def positions_of(lengths: Sequence[int] | Array) -> Array:
    """Return positions that count from 0 in every chunk, int64 `[sum of lengths]`."""
    return np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])


def labels_of(ids: Array, lengths: Sequence[int] | Array, answer: Array | None) -> Array:
    """Return the token to predict after each token, int64 `[tokens]`.

    The label is `IGNORED` after the last token of a chunk, and if the next token does not count in
    the loss.

    Args:
        ids: int32 `[tokens]`.
        lengths: tokens of each chunk.
        answer: bool `[tokens]`, true for tokens that count in the loss; None if all count.
    """
    labels = np.full(len(ids), IGNORED, np.int64)
    labels[:-1] = ids[1:]
    if answer is not None:
        labels[:-1][~np.asarray(answer, dtype=bool)[1:]] = IGNORED
    labels[np.cumsum(lengths) - 1] = IGNORED
    return labels
