"""What a run that takes up a dead one's work has left to do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from millrace.serving.batch.block_size import Load
from millrace.serving.batch.input.input_pieces import Piece
from millrace.serving.batch.job import RowNumbers


@dataclass(frozen=True)
class Todo:
    """A piece of the input with rows to score.

    Attributes:
        piece: the piece.
        done: `ROW`s in it that need no scoring any more, int64, sorted.
    """

    piece: Piece
    done: RowNumbers


def remaining(
    pieces: Sequence[Piece], counted: Mapping[str, int], done: RowNumbers
) -> tuple[Todo, ...]:
    """Return the pieces that are not done, in order.

    Args:
        pieces: of the input.
        counted: rows of the pieces that were read to their end, by the piece's name.
        done: `ROW`s that are scored or refused, sorted, each once.
    """
    left = []
    for number, piece in enumerate(pieces):
        after = pieces[number + 1].row if number + 1 < len(pieces) else np.iinfo(np.int64).max
        low, high = np.searchsorted(done, [piece.row, after])
        if counted.get(piece.name) != high - low:
            left.append(Todo(piece, done[low:high]))
    return tuple(left)


def load_of(todo: Sequence[Todo], actors: int) -> Load:
    """Return how much there is to do.

    Args:
        todo: pieces.
        actors: that answer.
    """
    known = [each.piece.rows for each in todo if each.piece.rows is not None]
    rows = sum(known) if len(known) == len(todo) else None
    return Load(len(todo), rows, sum(each.piece.size for each in todo), actors)
