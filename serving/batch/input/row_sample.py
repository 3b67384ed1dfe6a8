"""Some rows of a job's input, read once more, each beside what was written of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.models.common.arrays import spread
from millrace.models.data.row_checks import as_json, rows_of
from millrace.models.data.schema import KEY
from millrace.models.data.sources.source import CHUNK_ROWS
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.input_pieces import Piece
from millrace.serving.batch.job import ROW, RowNumbers
from millrace.serving.batch.monitoring.agreement import Agreement
from millrace.serving.batch.reconcile_rows import TWICE


def read_again(
    pieces: Sequence[Piece], columns: Sequence[str], wanted: RowNumbers
) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
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
    piece: Piece, columns: Sequence[str], wanted: RowNumbers
) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
    first = piece.row
    for chunk in piece.chunks(columns):
        places = first + chunk.places()
        mine = np.flatnonzero(np.isin(places, wanted))
        if len(mine):
            yield places[mine], chunk.rows.take(pa.array(mine))
        first += len(chunk)
        if first > wanted[-1]:
            return


FEW = 8
"""Pieces that are read again, of each its beginning; more only where these hold too few rows."""


@dataclass(frozen=True)
class Scored:
    """What a job has read and written, before its commit.

    Attributes:
        pieces: of the input, in its order.
        partition: where the data files are.
        files: `ROW` of each data file, by its path.
    """

    pieces: Sequence[Piece]
    partition: Partition
    files: Mapping[str, pa.Table]


Check = Callable[[Scored], Agreement]
"""Looks at a job before its commit, and raises what is to keep it from that."""


@dataclass(frozen=True)
class Example:
    """One row of a sample.

    Attributes:
        key: its `_key`.
        row: as it was read, in a batch of its own.
        written: what is in the output.
    """

    key: str
    row: pa.RecordBatch
    written: Mapping[str, Any]


def examples(
    scored: Scored, columns: Sequence[str], answers: Sequence[str], count: int
) -> Iterator[Example]:
    """Yield the rows of a sample, in the order of the input; the same ones every time.

    Args:
        scored: what the job has done.
        columns: of the input, to read.
        answers: columns of the output.
        count: rows of the sample, at most.

    Raises:
        OSError: the input or the output cannot be read.
    """
    places = [table[ROW].to_numpy() for table in scored.files.values()]
    wanted = chosen(scored.pieces, places, count)
    written = _written(scored, wanted, answers)
    for rows_at, rows in read_again(scored.pieces, columns, wanted):
        for number, place in enumerate(rows_at.tolist()):
            yield Example(written[place][KEY], rows.slice(number, 1), written[place])


def chosen(pieces: Sequence[Piece], scored: Sequence[RowNumbers], count: int) -> RowNumbers:
    """Choose rows, evenly over the beginnings of a few pieces that lie evenly over the input.

    Args:
        pieces: of the input, in its order.
        scored: `ROW`s, int64, of each data file.
        count: rows to choose.

    Returns:
        `ROW`s, int64, sorted; fewer than `count` where there are not as many.
    """
    found = np.empty(0, np.int64)
    for many in (FEW, count):
        taken = [pieces[n] for n in spread(len(pieces), many)]
        found = np.unique(np.concatenate([found, *(_begun(taken, rows) for rows in scored)]))
        if len(found) >= count:
            break
    return found[spread(len(found), count)]


def _begun(pieces: Sequence[Piece], rows: RowNumbers) -> RowNumbers:
    """Return those of the rows that lie at the beginning of one of the pieces."""
    firsts = np.array([piece.row for piece in pieces], np.int64)
    reach = [CHUNK_ROWS if p.rows is None else min(CHUNK_ROWS, p.rows) for p in pieces]
    piece = np.searchsorted(firsts, rows, side="right") - 1
    near = (piece >= 0) & (rows < (firsts + np.array(reach, np.int64))[piece])
    return np.asarray(rows[near], np.int64)


def _written(
    scored: Scored, wanted: RowNumbers, answers: Sequence[str]
) -> dict[int, dict[str, Any]]:
    """Return what was written of rows, by `ROW`."""
    filesystem, _ = scored.partition.place
    found: dict[int, dict[str, Any]] = {}
    for file, table in scored.files.items():
        mine = np.intersect1d(table[ROW].to_numpy(), wanted)
        if len(mine):
            rows = pq.read_table(
                file,
                columns=[ROW, KEY, *answers],
                filesystem=filesystem,
                filters=[(ROW, "in", mine.tolist())],
            )
            found |= {row[ROW]: row for row in rows.to_pylist()}
    return found
