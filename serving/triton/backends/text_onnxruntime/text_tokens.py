"""Texts to the tokens that a graph reads."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# Triton's instances are what runs side by side; threads of their own would take their cores.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
from tokenizers import Tokenizer

Array = npt.NDArray[Any]

CHARACTERS = 64
"""Of a text for each token that it may have; training and batch cut there too."""
TOKENS = 8192
"""Places of one run of the graph at most, unless one text alone has more."""


class Tokens:
    """A tokenizer, and how its texts are put into runs of the graph."""

    def __init__(self, path: Path) -> None:
        """Open `tokenizer.json`, which says where a text is cut and what a batch is filled with."""
        self.tokenizer = Tokenizer.from_file(str(path))
        self.padding = int((self.tokenizer.padding or {})["pad_id"])
        self.characters = CHARACTERS * int((self.tokenizer.truncation or {})["max_length"])
        self.tokenizer.no_padding()

    def runs(self, texts: Sequence[str]) -> Iterator[tuple[Array, Array]]:
        """Yield `(places [rows], ids int64 [rows, tokens])`, texts of about a length together."""
        cut = [text[: self.characters] for text in texts]
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(cut)]
        order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
        for places in pieces(order, [max(len(each), 1) for each in ids]):
            longest = max(len(ids[places[-1]]), 1)
            filled = np.full((len(places), longest), self.padding, dtype=np.int64)
            for row, place in enumerate(places):
                filled[row, : len(ids[place])] = ids[place]
            yield np.array(places), filled


def pieces(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Cut places, by rising length, into pieces of `TOKENS` when filled up to their longest."""
    piece: list[int] = []
    for place in order:
        if piece and (len(piece) + 1) * lengths[place] > TOKENS:
            yield piece
            piece = []
        piece.append(place)
    if piece:
        yield piece
