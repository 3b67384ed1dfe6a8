"""Reads and encodes the remaining rows of an input in Ray Data tasks, and separates bad rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from millrace.models.data.row_checks import as_json, rows_of
from millrace.models.data.schema import KEY
from millrace.models.data.sources.source import Chunk, read_error
from millrace.serving.batch.block_size import Load
from millrace.serving.batch.input.input_pieces import Piece, cells_of
from millrace.serving.batch.job import DEAD, ERROR, ROW, Job, RowNumbers
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.reconcile_rows import drop_rows

NO_KEY = "the key is missing, or not text"


@dataclass(frozen=True)
class RemainingPiece:
    """A piece of the input with rows to score.

    Attributes:
        piece: the piece.
        done: the `ROW`s of the piece that are scored or refused, int64, sorted.
    """

    piece: Piece
    done: RowNumbers

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle `done` as one bit for each row: Ray warns of tasks larger than 1 MiB."""
        marks = np.zeros(int(self.done[-1]) - self.piece.row + 1 if len(self.done) else 0, np.bool_)
        marks[self.done - self.piece.row] = True
        return _unpack, (self.piece, np.packbits(marks))


def _unpack(piece: Piece, bits: npt.NDArray[np.uint8]) -> RemainingPiece:
    return RemainingPiece(piece, piece.row + np.flatnonzero(np.unpackbits(bits)))


def find_remaining(
    pieces: Sequence[Piece], counted: Mapping[str, int], done: RowNumbers
) -> tuple[RemainingPiece, ...]:
    """Return the pieces that are not done, in order.

    Args:
        pieces: the pieces of the input.
        counted: the number of rows of each piece that was read completely, by the piece's name.
        done: `ROW`s that are scored or refused, sorted, each once.
    """
    left = []
    for number, piece in enumerate(pieces):
        after = pieces[number + 1].row if number + 1 < len(pieces) else np.iinfo(np.int64).max
        low, high = np.searchsorted(done, [piece.row, after])
        if counted.get(piece.name) != high - low:
            left.append(RemainingPiece(piece, done[low:high]))
    return tuple(left)


def load_of(remaining: Sequence[RemainingPiece], actors: int) -> Load:
    """Return the size of the remaining input, and the number of actors that share it.

    Args:
        remaining: the pieces.
        actors: the number of actors that score.
    """
    known = [each.piece.rows for each in remaining if each.piece.rows is not None]
    rows = sum(known) if len(known) == len(remaining) else None
    return Load(len(remaining), rows, sum(each.piece.size for each in remaining), actors)


class RemainingRows(Datasource):
    """Encodes the rows of pieces, and leaves out rows that are done or cannot be scored.

    The rows have `ROW` and the columns that the job's `encoded` returns, except `ERROR`.
    """

    def __init__(
        self, source: str, remaining: Sequence[RemainingPiece], job: Job, state: JobState
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source, self.remaining, self.job, self.state = source, remaining, job, state

    def estimate_inmemory_data_size(self) -> int:
        """Return the estimated size of the rows in memory, in bytes."""
        return sum(each.piece.size for each in self.remaining)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: ray.data.DataContext | None = None,
    ) -> list[ReadTask]:
        """Return tasks that read the pieces: one for each piece, but at most `parallelism` tasks.

        Args:
            parallelism: the largest number of tasks.
            per_task_row_limit: not used.
            data_context: not used.
        """
        count = min(parallelism, len(self.remaining))
        return [self._task(self.remaining[first::count]) for first in range(count)]

    def _task(self, remaining: Sequence[RemainingPiece]) -> ReadTask:
        read = partial(_read_pieces, self.source, remaining, self.job, self.state)
        update_wrapper(read, _read_pieces)  # Ray asks for the name of what a large task runs
        return ReadTask(
            read,
            BlockMetadata(
                num_rows=None,
                size_bytes=sum(each.piece.size for each in remaining),
                exec_stats=None,
                input_files=tuple({each.piece.file.path for each in remaining}),
            ),
        )


def _read_pieces(
    source: str, remaining: Sequence[RemainingPiece], job: Job, state: JobState
) -> Iterator[pa.Table]:
    """Read and encode whole pieces, and write their bad rows to the state; runs in a Ray task."""
    try:
        for each in remaining:
            piece, row = each.piece, each.piece.row
            seen = {bins.column: np.zeros(len(bins.counts), np.int64) for bins in job.bins}
            for chunk in piece.chunks(job.columns):
                first, row = row, row + len(chunk)
                encoded = job.encoded(chunk.rows)
                compared = job.compared(chunk.rows, encoded)
                for bins in job.bins:
                    seen[bins.column] += bins.count(cells_of(compared, bins.column))
                good, dead = split_chunk(chunk, first, encoded)
                state.refuse(f"{first:019d}", dead)
                low, high = np.searchsorted(each.done, [first, row])
                left = drop_rows(good, each.done[low:high]) if high > low else good
                if left.num_rows:
                    yield left
            counts = {column: counts.tolist() for column, counts in seen.items()}
            state.write_count(piece.name, row - piece.row, counts)
    except OSError as error:
        raise read_error(source, error) from error


def split_chunk(chunk: Chunk, first: int, encoded: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split a chunk into the encoded rows to score, and the bad rows with columns of `DEAD`.

    Args:
        chunk: rows, and lines that cannot be read.
        first: `ROW` of the first row or line.
        encoded: what the job's `encoded` returned for the rows.
    """
    encoded = encoded.append_column(ROW, pa.array(first + chunk.row_positions()))
    errors, keys = encoded[ERROR], encoded[KEY]
    if keys.null_count:
        errors = pc.coalesce(errors, pc.if_else(keys.is_null(), NO_KEY, None))
    good = encoded.drop_columns([ERROR])
    dead = [DEAD.empty_table()]
    if errors.null_count < len(errors):
        is_bad = errors.is_valid()
        good = good.filter(pc.invert(is_bad))
        bad = encoded.filter(is_bad)
        seen = [as_json(row) for row in rows_of(chunk.rows.filter(is_bad.combine_chunks()))]
        columns = [bad[ROW], bad[KEY], errors.filter(is_bad), pa.array(seen, pa.string())]
        dead.append(pa.table(columns, schema=DEAD))
    if chunk.unreadable:
        columns = [
            pa.array(first + chunk.unreadable_positions()),
            pa.nulls(len(chunk.unreadable), pa.string()),
            pa.array([line.reason for line in chunk.unreadable]),
            pa.array([as_json({"line": line.line}) for line in chunk.unreadable]),
        ]
        dead.append(pa.table(columns, schema=DEAD))
    return good, pa.concat_tables(dead)
