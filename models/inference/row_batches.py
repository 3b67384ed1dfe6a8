"""Runs many rows through a model in pieces of bounded size."""

from collections.abc import Callable, Iterator

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.inference.model_input import ModelInput

ROWS = 1024
PLACES = 8192
"""Tokens of a piece of texts at most, padding included; as in Triton's text backend."""
SMALL = 3
"""Rows of a small request, between a single row and a full batch."""
ASKED = 32
"""Golden rows, at most, that are requested singly and in small requests."""


def answer_rows(
    answer: Callable[[Array], Array],
    rows: Array,
    read: ModelInput,
    most: int = ROWS,
    most_tokens: int = PLACES,
) -> Array:
    """Return the answers `[rows, …]`, in the order of the rows.

    Texts are sorted by length, so that a piece holds little padding.

    Args:
        answer: answers one piece.
        rows: at least one, `[rows, width]`.
        read: the model's input.
        most: rows of a piece, if they are not texts.
        most_tokens: tokens of a piece of several texts, padding included.
    """
    pieces = list(split_rows(rows, read, most, most_tokens))
    answers = np.concatenate([answer(read.trimmed(rows[piece])) for piece in pieces])
    return answers[np.argsort(np.concatenate(pieces), kind="stable")]


def split_rows(
    rows: Array, read: ModelInput, most: int = ROWS, most_tokens: int = PLACES
) -> Iterator[Array]:
    """Yield the indices of the rows of each piece, texts of similar length together."""
    if read.padding is None:
        yield from np.split(np.arange(len(rows)), range(most, len(rows), most))
        return
    lengths = np.maximum(read.lengths(rows), 1)
    piece: list[int] = []
    for row in np.argsort(lengths, kind="stable").tolist():
        if piece and (len(piece) + 1) * lengths[row] > most_tokens:
            yield np.array(piece)
            piece = []
        piece.append(row)
    if piece:
        yield np.array(piece)


def golden_requests(rows: int, largest: int) -> list[Array]:
    """Return the requests for a golden batch: full batches, small requests and single rows.

    Fewer rows than a full batch are repeated until it is full. An answer may depend on the other
    rows of its batch, as with dynamic int8 ranges. So a release sends exactly the requests that
    were certified.

    Args:
        rows: rows of the golden batch.
        largest: rows of a full batch in serving.

    Returns:
        The indices of the golden rows of each request.
    """
    full, few = np.resize(np.arange(rows), max(rows, largest)), np.arange(min(rows, ASKED))
    return [
        indices[start : start + size]
        for indices, size in ((full, largest), (few, SMALL), (few, 1))
        for start in range(0, len(indices), size)
        if size <= largest
    ]
