"""Batch inference: rows through Ray Data actors into one partition of a Delta table."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread

import pyarrow as pa
import pyarrow.parquet as pq
import ray.data

from models.errors import InputError, MillraceError, WorkError
from serving.partition import Partition, removed_unless_committed
from serving.scorer import ScoreJob, Scorer, output_schema

SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class BatchReport:
    """What a batch job did.

    Attributes:
        table: URI of the output.
        table_version: version of the commit.
        date: the partition.
        model: registered model.
        model_version: its version.
        rows: rows in, all of which are in the output.
        unscored: those without a prediction, the reason beside them.
        seconds: wall time from reading to commit.
    """

    table: str
    table_version: int
    date: str
    model: str
    model_version: int
    rows: int
    unscored: int
    seconds: float

    @property
    def rows_per_second(self) -> float:
        """Rows per second, end to end."""
        return self.rows / self.seconds

    @property
    def rows_per_day(self) -> float:
        """Rows per day at this rate."""
        return self.rows_per_second * SECONDS_PER_DAY


def score(
    rows: ray.data.Dataset,
    job: ScoreJob,
    partition: Partition,
    *,
    batch_size: int,
    num_actors: int,
    on_rows: Callable[[int], None] = lambda _: None,
) -> BatchReport:
    """Score all rows and commit them at once.

    Args:
        rows: the input.
        job: what scores them.
        partition: where they go.
        batch_size: rows per call of the model.
        num_actors: actors, one session each.
        on_rows: called with the rows written so far.

    Raises:
        InputError: the input lacks a column, or has no rows; the table holds predictions of
            another type.
        WorkError: the job failed; nothing was committed.
        TransientError: another job committed the same partition meanwhile.
    """
    _check_columns(rows, job)
    schema = output_schema(job.encoding)
    partition.check(schema)
    replaces = partition.active()
    started = time.perf_counter()
    with removed_unless_committed(partition):
        scored = rows.map_batches(
            Scorer,
            fn_constructor_args=(job,),
            batch_size=batch_size,
            batch_format="pyarrow",
            compute=ray.data.ActorPoolStrategy(size=num_actors),
            num_cpus=1,
        )
        with _watched(partition, on_rows):
            _write(scored, partition)
        counts = _counts(partition)
        metadata = {
            "millrace.model": job.model,
            "millrace.model_version": str(job.version),
            "millrace.model_digest": job.digest,
            "millrace.rows": str(counts[0]),
        }
        version = partition.commit(schema, metadata, replaces)
    seconds = time.perf_counter() - started
    return BatchReport(
        partition.table, version, partition.value, job.model, job.version, *counts, seconds
    )


def _check_columns(rows: ray.data.Dataset, job: ScoreJob) -> None:
    schema = rows.schema()
    columns = list(schema.names) if schema is not None else []
    missing = [f.name for f in job.encoding.features if f.name not in columns]
    missing += [name for name in job.key if name not in columns and "_key" not in columns]
    if missing:
        raise InputError(
            "the input lacks columns that the model needs",
            seen=f"missing {', '.join(missing)}; there are {', '.join(columns) or 'none'}",
            valid=", ".join(feature.name for feature in job.encoding.features),
            hint="score rows with the columns that the model was trained on",
        )


def _write(scored: ray.data.Dataset, partition: Partition) -> None:
    try:
        scored.write_parquet(partition.folder)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, MillraceError):
            raise cause from error
        raise WorkError(
            "batch inference failed; nothing was committed",
            seen=str(error).strip().splitlines()[-1],
            hint="mend the cause and run it again",
        ) from error


def _counts(partition: Partition) -> tuple[int, int]:
    """Return rows written, and those without a prediction."""
    files = [file.path for file in partition.files()]
    if not files:
        raise InputError("the input of the batch job has no rows", hint="check --input")
    errors = pq.read_table(files, columns=["error"])["error"]
    return len(errors), len(errors) - errors.null_count


class _watched:
    """Tells how many rows are written, twice a second, while the block runs."""

    def __init__(self, partition: Partition, on_rows: Callable[[int], None]) -> None:
        self.partition, self.on_rows, self.done = partition, on_rows, Event()
        self.thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(0.5):
            self.on_rows(sum(_rows_if_whole(f.path) for f in self.partition.files()))


def _rows_if_whole(path: str) -> int:
    """Return the rows of a Parquet file, 0 while it is still being written."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowInvalid, OSError):
        return 0
