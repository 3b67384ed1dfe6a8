"""A sample of a job's input rows, read again, each with its prediction."""

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
from millrace.serving.batch.reconcile_rows import DUPLICATE_KEY, NO_ROWS

FEW = 8
"""Number of pieces whose first rows are sampled; more pieces only if these have too few rows."""


@dataclass(frozen=True)
class ScoredRows:
    """What a job has read and written, before its commit.

    Attributes:
        pieces: the pieces of the input, in order.
        partition: where the data files are.
        files: `ROW` of each data file, by its path.
    """

    pieces: Sequence[Piece]
    partition: Partition
    files: Mapping[str, pa.Table]


Check = Callable[[ScoredRows], Agreement]
"""Checks a job before its commit; raises an error to prevent the commit."""


@dataclass(frozen=True)
class Example:
    """One row of a sample.

    Attributes:
        key: the row's `_key`.
        row: the row as it was read, as a record batch of one row.
        written: the row's columns in the output.
    """

    key: str
    row: pa.RecordBatch
    written: Mapping[str, Any]


def read_examples(
    scored: ScoredRows, columns: Sequence[str], answers: Sequence[str], count: int
) -> Iterator[Example]:
    """Yield the rows of a sample in the order of the input; repeated calls yield the same rows.

    Args:
        scored: the job's rows.
        columns: columns of the input to read.
        answers: columns of the output to read.
        count: largest number of rows of the sample.

    Raises:
        OSError: the input or the output cannot be read.
    """
    rows_by_file = [table[ROW].to_numpy() for table in scored.files.values()]
    wanted = choose_rows(scored.pieces, rows_by_file, count)
    written = _read_written(scored, wanted, answers)
    for numbers, rows in _read_again(scored.pieces, columns, wanted):
        for at, number in enumerate(numbers.tolist()):
            yield Example(written[number][KEY], rows.slice(at, 1), written[number])


def fill_duplicates(dead: pa.Table, pieces: Sequence[Piece], columns: Sequence[str]) -> pa.Table:
    """Return the dead letters, and add the whole row to each one that has a duplicate key.

    A row that is dead for another reason was recorded when it was read. Duplicate keys are known
    only when all rows are written.

    Args:
        dead: the dead letters, with the columns of `DEAD`.
        pieces: the pieces of the input, in order.
        columns: columns of a row to add, as far as they exist.
    """
    wanted = dead.filter(pc.equal(dead["reason"], DUPLICATE_KEY))[ROW].to_numpy()
    if not len(wanted):
        return dead
    texts: dict[int, str] = {}
    for numbers, rows in _read_again(pieces, columns, np.sort(wanted)):
        texts |= zip(numbers.tolist(), map(as_json, rows_of(rows)), strict=True)
    pairs = zip(dead[ROW].to_pylist(), dead["row"].to_pylist(), strict=True)
    filled = pa.array([texts.get(number, row) for number, row in pairs], pa.string())
    return dead.set_column(dead.schema.get_field_index("row"), "row", filled)


def choose_rows(pieces: Sequence[Piece], scored: Sequence[RowNumbers], count: int) -> RowNumbers:
    """Choose rows evenly from the beginnings of a few pieces, which are spread over the input.

    Args:
        pieces: the pieces of the input, in order.
        scored: `ROW`s, int64, of each data file.
        count: number of rows to choose.

    Returns:
        `ROW`s, int64, sorted; fewer than `count` if fewer are found.
    """
    found = NO_ROWS
    for many in (FEW, count):
        few = [pieces[n] for n in spread(len(pieces), many)]
        found = np.unique(np.concatenate([found, *(_select_early(few, rows) for rows in scored)]))
        if len(found) >= count:
            break
    return found[spread(len(found), count)]


def _select_early(pieces: Sequence[Piece], rows: RowNumbers) -> RowNumbers:
    """Return the rows that are at the beginning of one of the pieces."""
    firsts = np.array([piece.row for piece in pieces], np.int64)
    reach = [CHUNK_ROWS if p.rows is None else min(CHUNK_ROWS, p.rows) for p in pieces]
    piece = np.searchsorted(firsts, rows, side="right") - 1
    near = (piece >= 0) & (rows < (firsts + np.array(reach, np.int64))[piece])
    return np.asarray(rows[near], np.int64)


def _read_again(
    pieces: Sequence[Piece], columns: Sequence[str], wanted: RowNumbers
) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
    """Yield the wanted rows in batches, each with its `ROW`s.

    Reading a piece stops after the piece's last wanted row.

    Args:
        pieces: the pieces of the input, in order.
        columns: columns to read, as far as they exist.
        wanted: `ROW`s, int64, sorted.
    """
    ends = [*(piece.row for piece in pieces[1:]), np.iinfo(np.int64).max]
    for piece, end in zip(pieces, ends, strict=False):
        left = wanted[(wanted >= piece.row) & (wanted < end)]
        if len(left):
            yield from _read_piece(piece, columns, left)


def _read_piece(
    piece: Piece, columns: Sequence[str], wanted: RowNumbers
) -> Iterator[tuple[RowNumbers, pa.RecordBatch]]:
    first = piece.row
    for chunk in piece.chunks(columns):
        numbers = first + chunk.row_positions()
        at = np.flatnonzero(np.isin(numbers, wanted))
        if len(at):
            yield numbers[at], chunk.rows.take(pa.array(at))
        first += len(chunk)
        if first > wanted[-1]:
            return


def _read_written(
    scored: ScoredRows, wanted: RowNumbers, answers: Sequence[str]
) -> dict[int, dict[str, Any]]:
    """Return the output columns of the wanted rows, by `ROW`."""
    filesystem, _ = scored.partition.location
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
