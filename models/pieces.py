"""Many rows through a model in pieces of bounded size, whatever they are many of."""

from collections.abc import Callable

import numpy as np

from models.arrays import Array
from models.model_input import ModelInput

ROWS = 1024
TEXTS = 64
"""Rows of a piece where they are texts: each has as many places as its longest has tokens."""


def answered(answer: Callable[[Array], Array], rows: Array, read: ModelInput) -> Array:
    """Return the answers `[rows, …]`, in the order of the rows.

    Texts go by their length, so that a piece holds little padding.

    Args:
        answer: answers one piece.
        rows: at least one, `[rows, width]`.
        read: what the model reads.
    """
    if read.padding is None:
        return np.concatenate(
            [answer(rows[at : at + ROWS]) for at in range(0, max(len(rows), 1), ROWS)]
        )
    order = np.argsort(read.lengths(rows), kind="stable")
    places = [order[at : at + TEXTS] for at in range(0, max(len(rows), 1), TEXTS)]
    pieces = [answer(read.trimmed(rows[each])) for each in places]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return np.concatenate(pieces)[back]
