"""Runs many rows through a model in batches of bounded size."""

from collections.abc import Callable, Iterator

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.inference.model_input import ModelInput

ROWS = 1024
PART_ROWS = 65_536
"""Texts are sorted by length within this many rows, so that few rows are in memory at a time."""
PLACES = 8192
"""Most tokens of a batch of texts, padding included; the same as in Triton's text backend."""
SMALL = 3
"""Rows of a small request, whose size is between a single row and a full batch."""
ASKED = 32
"""Most golden rows that are also sent singly and in small requests."""


def answer_rows(
    answer: Callable[[Array], Array],
    rows: Array,
    read: ModelInput,
    most: int = ROWS,
    most_tokens: int = PLACES,
) -> Array:
    """Return the answers `[rows, …]`, in the order of the rows.

    Texts are sorted by length, so that batches have little padding.

    Args:
        answer: function that returns the answers to one batch.
        rows: the rows, `[rows, width]`; at least one, if rows are texts.
        read: the model's input.
        most: most rows of a batch, if rows are not texts.
        most_tokens: most tokens of a batch of several texts, padding included.
    """
    answers: Array | None = None
    for start in range(0, max(len(rows), 1), PART_ROWS):  # of no rows, the model says the type
        part = rows[start : start + PART_ROWS]
        for piece in split_rows(part, read, most, most_tokens):
            found = answer(read.trimmed(part[piece]))
            if answers is None:
                answers = np.empty((len(rows), *found.shape[1:]), found.dtype)
            answers[start + piece] = found
    if answers is None:
        raise ValueError("there are no rows to answer")
    return answers


def split_rows(
    rows: Array, read: ModelInput, most: int = ROWS, most_tokens: int = PLACES
) -> Iterator[Array]:
    """Yield the row indices of each batch, with texts of similar length together."""
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

    If the golden batch is smaller than a full batch, its rows are repeated. An answer may depend on
    the other rows of its batch, for example with dynamic int8 ranges. So a release sends exactly
    the requests that were certified.

    Args:
        rows: number of rows of the golden batch.
        largest: rows of a full batch in serving.

    Returns:
        For each request, the indices of its golden rows.
    """
    full, few = np.resize(np.arange(rows), max(rows, largest)), np.arange(min(rows, ASKED))
    return [
        indices[start : start + size]
        for indices, size in ((full, largest), (few, SMALL), (few, 1))
        for start in range(0, len(indices), size)
        if size <= largest
    ]
