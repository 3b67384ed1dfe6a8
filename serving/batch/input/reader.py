"""Reads and encodes the pieces of an input in tasks of Ray Data, and puts bad rows aside."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from millrace.models.data.row_checks import as_json, rows_of
from millrace.models.data.schema import KEY
from millrace.models.data.sources.source import Chunk, read_error
from millrace.serving.batch.input.input_pieces import cells_of
from millrace.serving.batch.job import DEAD, ERROR, ROW, Job
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.reconcile_rows import without_rows
from millrace.serving.batch.remaining_work import Todo

NO_KEY = "the key is missing, or not text"


class Rows(Datasource):
    """The good rows of an input, encoded: `ROW` and what the job's `encoded` returned."""

    def __init__(self, source: str, todo: Sequence[Todo], job: Job, workplace: JobState) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source, self.todo, self.job, self.workplace = source, todo, job, workplace

    def estimate_inmemory_data_size(self) -> int:
        """Return about how many bytes the rows will take."""
        return sum(each.piece.size for each in self.todo)

    def get_read_tasks(
        self,
        parallelism: int,
        per_task_row_limit: int | None = None,
        data_context: ray.data.DataContext | None = None,
    ) -> list[ReadTask]:
        """Return tasks that read whole pieces, one each where that is not more than asked for."""
        count = min(parallelism, len(self.todo))
        return [self._task(self.todo[first::count]) for first in range(count)]

    def _task(self, todo: Sequence[Todo]) -> ReadTask:
        return ReadTask(
            partial(_read, self.source, todo, self.job, self.workplace),
            BlockMetadata(
                num_rows=None,
                size_bytes=sum(each.piece.size for each in todo),
                exec_stats=None,
                input_files=tuple({each.piece.file.path for each in todo}),
            ),
        )


def _read(source: str, todo: Sequence[Todo], job: Job, workplace: JobState) -> Iterator[pa.Table]:
    """Read, encode and part whole pieces; runs in a task of Ray."""
    try:
        for each in todo:
            piece, row = each.piece, each.piece.row
            seen = [np.zeros(len(bins.counts), np.int64) for bins in job.bins]
            for chunk in piece.chunks(job.columns):
                first, row = row, row + len(chunk)
                encoded = job.encoded(chunk.rows)
                compared = job.compared(chunk.rows, encoded)
                for bins, counts in zip(job.bins, seen, strict=True):
                    counts += bins.counted(cells_of(compared, bins.column))
                good, dead = parted(chunk, first, encoded)
                workplace.refuse(f"{first:019d}", dead)
                low, high = np.searchsorted(each.done, [first, row])
                left = without_rows(good, each.done[low:high]) if high > low else good
                if left.num_rows:
                    yield left
            names = [bins.column for bins in job.bins]
            listed = [counts.tolist() for counts in seen]
            workplace.count(piece.name, row - piece.row, dict(zip(names, listed, strict=True)))
    except OSError as error:
        raise read_error(source, error) from error


def parted(chunk: Chunk, first: int, encoded: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Part the rows of a chunk into those to score, encoded, and the others, of `DEAD`.

    Args:
        chunk: some rows and unreadable lines.
        first: `ROW` of the first of them.
        encoded: what the job's `encoded` returned of them.
    """
    rows = chunk.rows
    places = pa.array(first + chunk.places())
    encoded = encoded.append_column(ROW, places)
    errors, keys = encoded[ERROR], encoded[KEY]
    if keys.null_count:
        errors = pc.coalesce(errors, pc.if_else(keys.is_null(), NO_KEY, None))
    good = encoded.drop_columns([ERROR])
    dead = []
    if errors.null_count < len(errors):
        is_bad = errors.is_valid()
        good = good.filter(pc.invert(is_bad))
        bad = encoded.filter(is_bad)
        seen = [as_json(row) for row in rows_of(rows.filter(is_bad.combine_chunks()))]
        columns = [bad[ROW], bad[KEY], errors.filter(is_bad), pa.array(seen, pa.string())]
        dead.append(pa.table(columns, schema=DEAD))
    if chunk.unreadable:
        columns = [
            pa.array(first + chunk.unreadable_places()),
            pa.nulls(len(chunk.unreadable), pa.string()),
            pa.array([line.reason for line in chunk.unreadable]),
            pa.array([as_json({"line": line.line}) for line in chunk.unreadable]),
        ]
        dead.append(pa.table(columns, schema=DEAD))
    return good, pa.concat_tables([DEAD.empty_table(), *dead])
