"""Some rows of an input, read a second time."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.row_checks import as_json, rows_of
from millrace.serving.batch.input.input_pieces import Piece
from millrace.serving.batch.job import ROW, Places
from millrace.serving.batch.reconcile_rows import TWICE


def read_again(
    pieces: Sequence[Piece], columns: Sequence[str], wanted: Places
) -> Iterator[tuple[Places, pa.RecordBatch]]:
    """Yield rows of the input, each batch with their `ROW`s.

    Of a piece no more is read than it takes.

    Args:
        pieces: of the input, in its order.
        columns: to read, where they are there.
        wanted: `ROW`s, int64, sorted.
    """
    firsts = np.array([piece.row for piece in pieces], np.int64)
    for number, piece in enumerate(pieces):
        end = firsts[number + 1] if number + 1 < len(pieces) else np.iinfo(np.int64).max
        mine = wanted[(wanted >= piece.row) & (wanted < end)]
        if len(mine):
            yield from _rows_of(piece, columns, mine)


def with_rows(dead: pa.Table, pieces: Sequence[Piece], columns: Sequence[str]) -> pa.Table:
    """Return dead letters of which those of a second key hold their rows.

    What is dead for another reason was seen when it was read; that a key is there twice is known
    when all are written.

    Args:
        dead: of `DEAD`.
        pieces: of the input, in its order.
        columns: of a row, as far as they are there.
    """
    wanted = dead.filter(pc.equal(dead["reason"], TWICE))[ROW].to_numpy()
    if not len(wanted):
        return dead
    told: dict[int, str] = {}
    for places, rows in read_again(pieces, columns, np.sort(wanted)):
        told |= zip(places.tolist(), map(as_json, rows_of(rows)), strict=True)
    places, rows = dead[ROW].to_pylist(), dead["row"].to_pylist()
    seen = [told.get(place, row) for place, row in zip(places, rows, strict=True)]
    return dead.set_column(dead.schema.get_field_index("row"), "row", pa.array(seen, pa.string()))


def _rows_of(
    piece: Piece, columns: Sequence[str], wanted: Places
) -> Iterator[tuple[Places, pa.RecordBatch]]:
    first = piece.row
    for chunk in piece.chunks(columns):
        places = first + chunk.places()
        mine = np.flatnonzero(np.isin(places, wanted))
        if len(mine):
            yield places[mine], chunk.rows.take(pa.array(mine))
        first += len(chunk)
        if first > wanted[-1]:
            return
