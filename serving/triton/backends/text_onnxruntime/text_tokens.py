"""Tokenize texts into batches for an ONNX graph."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Triton's instances run in parallel; threads of the tokenizer would compete for their cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer

Array = npt.NDArray[Any]

CHARACTERS = 64
"""A text is cut to this number of characters for each token of the truncation length.

Training and batch inference use the same number.
"""
MAX_TOKENS = 8192
"""Largest number of tokens in a batch, including padding; a single text may exceed it."""


class TextBatcher:
    """Tokenizes texts, and groups texts of similar length into batches."""

    def __init__(self, path: Path) -> None:
        """Open `tokenizer.json`, which defines the truncation and the padding too."""
        self.tokenizer = Tokenizer.from_file(str(path))
        self.padding = int((self.tokenizer.padding or {})["pad_id"])
        self.characters = CHARACTERS * int((self.tokenizer.truncation or {})["max_length"])
        self.tokenizer.no_padding()

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[Array, Array]]:
        """Yield batches of texts of similar length.

        A batch is `(positions [rows], ids int64 [rows, tokens])`: the positions of its texts in
        `texts`, and their padded token ids.
        """
        cut = [text[: self.characters] for text in texts]
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(cut)]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for positions in split_batches(order, [max(len(each), 1) for each in ids]):
            longest = max(len(ids[positions[-1]]), 1)
            filled = np.full((len(positions), longest), self.padding, dtype=np.int64)
            for row, position in enumerate(positions):
                filled[row, : len(ids[position])] = ids[position]
            yield np.array(positions), filled


def split_batches(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Split positions, in order of length, into batches of at most `MAX_TOKENS` with padding."""
    batch: list[int] = []
    for position in order:
        if batch and (len(batch) + 1) * lengths[position] > MAX_TOKENS:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
