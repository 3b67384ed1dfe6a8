"""Run rows through Ray Data: read them, score them in actors with the model, write Parquet."""

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data.checkpoint import CheckpointConfig

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.ray_folder import ray_logs
from millrace.models.data.folder import Folder
from millrace.serving.batch.beside_online.pause_file import PauseFile, Wait, go_on
from millrace.serving.batch.block_size import Blocks
from millrace.serving.batch.cluster.model_files import ModelFiles, with_local_files
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.reader import RemainingPiece, RemainingRows
from millrace.serving.batch.job import ROW, TOKENS_IN, TOKENS_OUT, Answers, Job
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.progress_counter import Meter
from millrace.serving.batch.monitoring.throughput import Work

MAX_READ_TASKS = 4096


@dataclass(frozen=True)
class ActorContext:
    """The actors of a run, and where they write.

    Attributes:
        state: the job state, which records the refused rows.
        meter: counts the work that is done.
        blocks: the sizes of the blocks in which rows go through Ray.
        num_actors: number of actors; each holds one CPU of Ray and loads the model.
        model: the model's files, if Ray may have nodes other than the driver's node; else None.
        pause: the file by which the actors stand still for online requests on this machine; None if
            they yield to nobody.
    """

    state: JobState
    meter: Meter
    blocks: Blocks
    num_actors: int = 1
    model: ModelFiles | None = None
    pause: PauseFile | None = None


class ScoringJob(Job, Protocol):
    """A job that scores a Ray dataset."""

    def answer_rows(self, rows: ray.data.Dataset, context: ActorContext) -> ray.data.Dataset:
        """Score the rows, and record in the job state the rows that the model refuses.

        Args:
            rows: rows with `ROW` and the columns that the job's `encoded` returns, except `ERROR`.
            context: the actors, and where they write.

        Returns:
            The predictions, with the job's `output` columns.
        """
        ...


class Worker(Protocol):
    """A model that is loaded in an actor's process."""

    def __call__(self, rows: pa.Table) -> Answers:
        """Score rows.

        Args:
            rows: rows with `ROW` and the columns that the job's `encoded` returns, except `ERROR`.
        """
        ...


class ActorJob(Job, Protocol):
    """A job whose model is loaded by `Actor`."""

    def worker(self, wait: Wait = go_on) -> Worker:
        """Load the model.

        Args:
            wait: what the worker calls before each step of the model, and when it may go on.
        """
        ...


class Actor:
    """An actor of Ray Data: loads a job's model and scores rows."""

    def __init__(self, job: ActorJob, context: ActorContext) -> None:
        began = time.perf_counter()
        self.state, self.meter, self.name = context.state, context.meter, uuid4().hex[:8]
        self.pause = context.pause
        wait = go_on if self.pause is None else self.pause.wait
        self.worker = with_local_files(job, context.model).worker(wait)
        self.meter.record_opened(self.name, time.perf_counter() - began)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the predictions, with the job's `output` columns."""
        began, waited = time.perf_counter(), self.waited
        answers = self.worker(rows)
        if answers.refused.num_rows:
            first = pc.min(answers.refused[ROW]).as_py()
            self.state.refuse(f"{first:019d}-{self.name}", answers.refused)
        busy = time.perf_counter() - began - (self.waited - waited)
        self.meter.add(self.name, busy, work_of(answers.rows))
        return answers.rows

    @property
    def waited(self) -> float:
        """Seconds that the actor stood still for online requests."""
        return 0.0 if self.pause is None else self.pause.waited


def in_actors(rows: ray.data.Dataset, job: ActorJob, context: ActorContext) -> ray.data.Dataset:
    """Score rows in a pool of actors.

    Args:
        rows: rows with `ROW` and the columns that the job's `encoded` returns, except `ERROR`.
        job: the job whose model each actor loads.
        context: the actors, and where they write.

    Returns:
        The predictions, with the job's `output` columns.
    """
    return rows.map_batches(
        Actor,
        fn_constructor_args=(job, context),
        batch_size=context.blocks.rows_per_call,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=context.num_actors, max_tasks_in_flight_per_actor=context.blocks.ahead
        ),
        num_cpus=1,
    )


def work_of(rows: pa.Table) -> Work:
    """Return the number of rows and tokens in a table of predictions."""
    return Work(rows.num_rows, _sum(rows, TOKENS_IN), _sum(rows, TOKENS_OUT))


def _sum(rows: pa.Table, name: str) -> int:
    return (pc.sum(rows[name]).as_py() or 0) if name in rows.column_names else 0


def write_predictions(
    source: str,
    remaining: Sequence[RemainingPiece],
    job: ScoringJob,
    context: ActorContext,
    partition: Partition,
    checkpoint: Folder | None,
) -> None:
    """Read, score and write rows, without a commit.

    Args:
        source: the name of the input.
        remaining: the pieces of the input that are not done.
        job: the job that scores the rows.
        context: the actors, and where they write.
        partition: where the predictions are written.
        checkpoint: folder of Ray's checkpoint; None: write no checkpoint.

    Raises:
        WorkError: Ray failed.
        MillraceError: what a task or an actor raised.
    """
    filesystem, path = partition.location
    with _data_context(checkpoint, context.blocks.bytes), warnings.catch_warnings():
        # A small input does not keep all actors busy, and Ray warns about it.
        warnings.filterwarnings("ignore", "The minimum number of concurrent actors", UserWarning)
        try:
            rows = ray.data.read_datasource(
                RemainingRows(source, remaining, job, context.state),
                override_num_blocks=min(len(remaining), MAX_READ_TASKS),
                **_read_options(context),
            )
            job.answer_rows(rows, context).write_parquet(
                path, filesystem=filesystem, **_write_options(context)
            )
        except Exception as error:  # Ray's own errors, or what a task raised
            raise fault_of(error) from error


def _read_options(context: ActorContext) -> dict[str, Any]:
    """Return Ray's options of the tasks that read.

    The embedded Ray has two logical CPUs more than the actors reserve. On a cluster the actors may
    reserve all CPUs. After a node died, they may reserve more CPUs than are left. A task that waits
    for a CPU that only an actor could free would block the job forever. So tasks reserve no CPU on
    a cluster.
    """
    if context.blocks.rows_per_call is None:  # the actors read the input themselves
        return {"num_cpus": 1}
    if context.model is None:
        return {}
    return {"num_cpus": 0, "concurrency": context.num_actors}


def _write_options(context: ActorContext) -> dict[str, Any]:
    """Return Ray's options of the tasks that write; see `_read_options`."""
    if context.model is None:
        return {}
    return {"ray_remote_args": {"num_cpus": 0}, "concurrency": context.num_actors}


@contextmanager
def _data_context(checkpoint: Folder | None, block_bytes: int) -> Iterator[None]:
    """Change Ray Data's process-wide settings while the block runs."""
    gc.collect()  # actors of a failed job may be in reference cycles, with GPUs that this job needs
    context = ray.data.DataContext.get_current()
    before = context.checkpoint_config, context.target_max_block_size
    # Otherwise a MillraceError raised in an actor arrives only as the text of its traceback.
    context.raise_original_map_exception = True
    context.target_max_block_size = block_bytes
    if checkpoint is not None:
        filesystem, path = checkpoint.location
        context.checkpoint_config = CheckpointConfig(
            ROW,
            path,
            override_filesystem=filesystem,
            # Otherwise Ray deletes the checkpoint before the commit. If the commit then fails, the
            # work is lost.
            delete_checkpoint_on_success=False,
        )
    try:
        yield
    finally:
        context.checkpoint_config, context.target_max_block_size = before


def fault_of(error: Exception) -> MillraceError:
    """Return a MillraceError for the error that ended a Ray Data job; release the job's actors."""
    _forget_frames(error)
    cause = getattr(error, "cause", None)
    if isinstance(cause, MillraceError):
        return cause
    if isinstance(error, MillraceError):
        return error
    if cause is not None:  # after the first line Ray adds advice about its own settings
        lines = str(cause).strip().splitlines()
        seen = ": ".join([type(cause).__name__, *lines[:1]])
    else:
        lines = [line for line in str(error).splitlines() if line[:1].strip()]
        seen = lines[-1] if lines else type(error).__name__
    return WorkError(
        "batch inference failed; nothing was committed",
        seen=seen,
        hint=f"fix the cause and run the job again; the output of the actors is in {ray_logs()}",
    )


def _forget_frames(error: BaseException) -> None:
    """Remove the traceback of an error, and of the errors that caused it.

    Ray Data does not stop the actors of a failed job: the actors end when nothing refers to them.
    Some frames of the traceback refer to them. A caller that keeps the error, to try again or to go
    on with another date, would keep these frames, and with them the GPUs and CPUs that the next job
    waits for.
    """
    seen: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        each = behind.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            behind += [each.__cause__, each.__context__]
