"""In blocks of which size the rows of a job go through Ray, and what reads and writes them.

The embedded Ray has two logical CPUs more than actors hold. On a cluster actors may hold all there
are, and after the death of a node more than are left. Then nothing may wait for a CPU that only an
actor could give back, or the job stands still for ever: so the tasks that read and write hold none.
"""

from dataclasses import dataclass
from typing import Any

PIECES_PER_ACTOR = 4
"""From which actors read for themselves: what one has to do more than the others is little."""
FILES_PER_ACTOR = 16
"""Of an output that is neither small nor large; after a kill some half of one is done again."""
LARGEST = 2**24
"""Bytes of a block where actors read."""
HANDED_LARGEST = 2**26
"""Where tasks read: a block that is handed on costs Ray tens of milliseconds, however small."""

SLOW_SMALLEST, SLOW_LARGEST = 2**10, 2**16
"""Bytes of a block of rows that are slowly answered: a kill costs no more than a few of them."""
BLOCKS_PER_CALL = 8


@dataclass(frozen=True)
class Load:
    """What there is to do.

    Attributes:
        pieces: of the input.
        rows: in them; None where only reading tells.
        bytes: in them, about.
        actors: that answer.
    """

    pieces: int
    rows: int | None
    bytes: int
    actors: int


@dataclass(frozen=True)
class Blocks:
    """How rows go through Ray.

    Attributes:
        bytes: of a block; of answers it is a file of the output.
        rows_per_call: what an actor is given at a time; None for a block as it comes, which lets
            Ray join reading and answering in the actors, and no row is copied from one process to
            another.
        ahead: blocks that an actor is given at a time, the one that it works on among them.
    """

    bytes: int
    rows_per_call: int | None
    ahead: int = 2


def blocks_of(load: Load, rows_per_call: int, call_bytes: int, answer_bytes: int) -> Blocks:
    """Return how rows go through Ray that are quickly read.

    Args:
        load: what there is to do.
        rows_per_call: rows that the model is given at a time.
        call_bytes: their size once they are encoded.
        answer_bytes: the size of an answer.
    """
    files = FILES_PER_ACTOR * load.actors
    if load.pieces < PIECES_PER_ACTOR * load.actors:
        return Blocks(max(min(load.bytes // files, HANDED_LARGEST), call_bytes), rows_per_call)
    given = load.bytes if load.rows is None else load.rows * answer_bytes
    return Blocks(max(min(given // files, LARGEST), call_bytes), None)


def slow_blocks_of(load: Load, rows_per_call: int) -> Blocks:
    """Return how rows go through Ray of which a call takes seconds: alike for all actors.

    The calls are as many for each actor, so that none works alone at the end, and no actor is given
    a second one while another that begins a little later has none.

    Args:
        load: what there is to do.
        rows_per_call: rows that the model is given at a time, at most.
    """
    if not load.rows:
        return Blocks(SLOW_LARGEST, rows_per_call, ahead=1)
    calls = load.actors * -(-load.rows // (rows_per_call * load.actors))
    rows = -(-load.rows // calls)
    # A call takes whole blocks; one too many of small ones is little.
    part = load.bytes * rows // load.rows // BLOCKS_PER_CALL
    return Blocks(min(max(part, SLOW_SMALLEST), SLOW_LARGEST), rows, ahead=1)


def reading(at_most: int) -> dict[str, Any]:
    """Return options of the tasks that read.

    Args:
        at_most: at a time.
    """
    return {"num_cpus": 0, "concurrency": at_most}


def writing(at_most: int) -> dict[str, Any]:
    """Return options of the tasks that write; as for `reading`."""
    return {"ray_remote_args": {"num_cpus": 0}, "concurrency": at_most}
