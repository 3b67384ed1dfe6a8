"""Batch inference: rows through Ray Data actors into one partition of a Delta table."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread

import ray.data

from models.errors import InputError
from serving.batch_input import fault_of
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
        rows: the input, encoded: what `read_rows` returned.
        job: what scores them.
        partition: where they go.
        batch_size: rows per call of the model.
        num_actors: actors, one session each.
        on_rows: called with the rows written so far.

    Raises:
        InputError: the input has no rows; the table holds predictions of another type.
        WorkError: the job failed; nothing was committed.
        TransientError: another job committed the same partition meanwhile.
    """
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


def _write(scored: ray.data.Dataset, partition: Partition) -> None:
    filesystem, path = partition.place
    try:
        scored.write_parquet(path, filesystem=filesystem)
    except Exception as error:  # whatever Ray raises of its own or hands over from a task
        raise fault_of(error) from error


def _counts(partition: Partition) -> tuple[int, int]:
    """Return rows written, and those without a prediction."""
    if not partition.files():
        raise InputError("the input of the batch job has no rows", hint="check --input")
    errors = partition.read("error")
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
        rows: dict[str, int] = {}
        while not self.done.wait(0.5):
            with suppress(OSError):  # the next look may succeed
                rows |= self.partition.rows(known=rows)
                self.on_rows(sum(rows.values()))
