"""The size of the blocks in which the rows of a job go through Ray."""

from dataclasses import dataclass

PIECES_PER_ACTOR = 4
"""With at least this number of pieces per actor, the actors read the input themselves. If
one actor then reads one piece more than the others, little time is lost.
"""
FILES_PER_ACTOR = 16
"""Output files that each actor writes; a killed actor loses the work for about half a file."""
LARGEST = 2**24
"""Largest size of a block in bytes, if actors read the input."""
HANDED_LARGEST = 2**26
"""Largest size of a block in bytes, if tasks read the input. It is larger than `LARGEST`, because
handing a block on to an actor takes Ray tens of milliseconds at any size.
"""

SLOW_SMALLEST, SLOW_LARGEST = 2**10, 2**16
"""Smallest and largest size of a block in bytes, if rows take long to score. A kill loses the work
of a few blocks at most.
"""
BLOCKS_PER_CALL = 8


@dataclass(frozen=True)
class Load:
    """The size of the input to score, and the number of actors that share it.

    Attributes:
        pieces: number of pieces of the input.
        rows: number of rows in these pieces; None if it is known only after reading.
        bytes: estimated size of the pieces.
        actors: number of actors that score.
    """

    pieces: int
    rows: int | None
    bytes: int
    actors: int


@dataclass(frozen=True)
class Blocks:
    """The sizes of the blocks in which rows go through Ray.

    Attributes:
        bytes: size of a block; a block of predictions becomes a file of the output.
        rows_per_call: rows that an actor gets in one call. None: an actor gets a whole block. Ray
            then runs reading and scoring together in the actors, and copies no row between
            processes.
        ahead: blocks that an actor gets at a time, including the one that it works on.
    """

    bytes: int
    rows_per_call: int | None
    ahead: int = 2


def blocks_of(load: Load, rows_per_call: int, call_bytes: int, answer_bytes: int) -> Blocks:
    """Return the block sizes for rows that are scored quickly.

    Args:
        load: the size of the input, and the number of actors.
        rows_per_call: rows of one call of the model.
        call_bytes: size of these rows once they are encoded.
        answer_bytes: size of one prediction.
    """
    files = FILES_PER_ACTOR * load.actors
    if load.pieces < PIECES_PER_ACTOR * load.actors:
        return Blocks(max(min(load.bytes // files, HANDED_LARGEST), call_bytes), rows_per_call)
    output_bytes = load.bytes if load.rows is None else load.rows * answer_bytes
    return Blocks(max(min(output_bytes // files, LARGEST), call_bytes), None)


def slow_blocks_of(load: Load, rows_per_call: int) -> Blocks:
    """Return the block sizes for slow rows, where one call of the model takes seconds.

    Each actor gets the same number of calls of the same size, so that no actor works alone at the
    end. No actor gets a second call while an actor that starts a little later has none.

    Args:
        load: the size of the input, and the number of actors.
        rows_per_call: the largest number of rows of one call of the model.
    """
    if not load.rows:
        return Blocks(SLOW_LARGEST, rows_per_call, ahead=1)
    calls = load.actors * -(-load.rows // (rows_per_call * load.actors))
    rows = -(-load.rows // calls)
    # A call takes whole blocks; one small block too many costs little.
    part = load.bytes * rows // load.rows // BLOCKS_PER_CALL
    return Blocks(min(max(part, SLOW_SMALLEST), SLOW_LARGEST), rows, ahead=1)
