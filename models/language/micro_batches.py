"""Micro-batches of packed sequences.

Positions count from 0 in every piece, and no attention mask is given: transformers then takes every
break in `position_ids` for the beginning of a sequence of its own
(`masking_utils.find_packed_sequence_indices`), as long as there is no cache (`use_cache=False`).
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
"""Batches are filled up to a multiple of this many tokens, as tensor cores want them."""


@dataclass(frozen=True)
class MicroBatch:
    """The tokens of one forward pass.

    Attributes:
        input_ids: int64 `[rows, width]`.
        position_ids: int64 `[rows, width]`, from 0 in every piece.
        labels: int64 `[rows, width]`, the token to predict after each, or `IGNORED`.
        tokens: tokens that are not filling.
        answers: labels that are not ignored.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    tokens: int
    answers: int

    def on(self, device: torch.device) -> "MicroBatch":
        """Return it on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


def micro_batch(sequences: Sequence[Packed], padding: int, multiple: int = MULTIPLE) -> MicroBatch:
    """Put sequences together.

    Without any it is one row of filling, which takes part in every collective and teaches nothing.

    Args:
        sequences: the packed sequences.
        padding: the token that fills up.
        multiple: the width is a multiple of this.
    """
    longest = max((len(ids) for ids, _, _ in sequences), default=1)
    shape = (max(len(sequences), 1), -(-longest // multiple) * multiple)
    input_ids = np.full(shape, padding, np.int64)
    position_ids = np.zeros(shape, np.int64)
    labels = np.full(shape, IGNORED, np.int64)
    for row, (ids, lengths, answer) in enumerate(sequences):
        width = len(ids)
        input_ids[row, :width] = ids
        # Filling goes on with the last piece, which does not see it: a row of one piece then needs
        # no mask. No position is higher than the longest sequence has.
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
    """Return positions that count from 0 in every piece, int64 `[sum of lengths]`."""
    return np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])


def labels_of(ids: Array, lengths: Sequence[int] | Array, answer: Array | None) -> Array:
    """Return the token to predict after each token, int64 `[tokens]`.

    `IGNORED` after the last token of a piece, and where the next token does not count.

    Args:
        ids: int32 `[tokens]`.
        lengths: of the pieces.
        answer: which tokens count, bool `[tokens]`; None for all.
    """
    labels = np.full(len(ids), IGNORED, np.int64)
    labels[:-1] = ids[1:]
    if answer is not None:
        labels[:-1][~np.asarray(answer, dtype=bool)[1:]] = IGNORED
    labels[np.cumsum(lengths) - 1] = IGNORED
    return labels
