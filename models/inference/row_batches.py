"""Many rows through a model in pieces of bounded size, whatever they are many of."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.inference.model_input import ModelInput

ROWS = 1024
PLACES = 8192
"""Tokens of a piece of texts at most, all filled up to the longest; Triton's step has the same."""
SMALL = 3
"""Rows of a small request: neither alone nor a full batch."""
ASKED = 32
"""Golden rows, at most, that are asked for alone and in small requests."""


def answered(
    answer: Callable[[Array], Array],
    rows: Array,
    read: ModelInput,
    most: int = ROWS,
    most_tokens: int = PLACES,
) -> Array:
    """Return the answers `[rows, …]`, in the order of the rows.

    Texts go by their length, so that a piece holds little padding.

    Args:
        answer: answers one piece.
        rows: at least one, `[rows, width]`.
        read: what the model reads.
        most: rows of a piece, if they are no texts.
        most_tokens: of a piece of texts, unless it is a single one.
    """
    places = list(pieces(rows, read, most, most_tokens))
    found = np.concatenate([answer(read.trimmed(rows[each])) for each in places])
    return found[np.argsort(np.concatenate(places), kind="stable")]


def pieces(
    rows: Array, read: ModelInput, most: int = ROWS, most_tokens: int = PLACES
) -> Iterator[Array]:
    """Yield the places of the rows of each piece, texts of about a length together."""
    if read.padding is None:
        yield from np.split(np.arange(len(rows)), range(most, len(rows), most))
        return
    lengths = np.maximum(read.lengths(rows), 1)
    order = np.argsort(lengths, kind="stable")
    yield from (
        np.array(piece) for piece in by_length(order.tolist(), lengths.tolist(), most_tokens)
    )


def by_length(order: Sequence[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Cut places, by rising length, into pieces of so many when filled up to their longest."""
    piece: list[int] = []
    for place in order:
        if piece and (len(piece) + 1) * lengths[place] > most:
            yield piece
            piece = []
        piece.append(place)
    if piece:
        yield piece


def golden_requests(rows: int, largest: int) -> list[Array]:
    """Return the requests in which a golden batch is asked for: full, small and alone.

    Fewer rows than a full batch are repeated until it is full.

    An answer may depend on what else is in its batch: int8 with dynamic ranges does. So a release
    asks for what was certified, and for nothing else.

    Args:
        rows: rows of the golden batch.
        largest: rows of a full batch in serving.

    Returns:
        The places of the golden rows of each request.
    """
    full, few = np.resize(np.arange(rows), max(rows, largest)), np.arange(min(rows, ASKED))
    return [
        places[start : start + size]
        for places, size in ((full, largest), (few, SMALL), (few, 1))
        for start in range(0, len(places), size)
        if size <= largest
    ]
