"""The actor of Ray Data that holds one opened model, and what its failures mean."""

import time
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import ray.data

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.ray_folder import ray_logs
from millrace.serving.batch.block_size import Blocks
from millrace.serving.batch.cluster.model_files import Carried, at_hand
from millrace.serving.batch.job import ROW, TOKENS_IN, TOKENS_OUT, Answers, Job
from millrace.serving.batch.job_state import JobState
from millrace.serving.batch.monitoring.progress_counter import Meter
from millrace.serving.batch.monitoring.throughput import Work


@dataclass(frozen=True)
class ActorContext:
    """With what the rows of a job are answered.

    Attributes:
        workplace: where rows are put aside that are not.
        meter: takes what was done.
        blocks: how rows go through Ray.
        num_actors: actors, one opened model each.
        cpus: CPUs of Ray that each holds.
        model: its files, where there are other nodes than the driver's.
    """

    workplace: JobState
    meter: Meter
    blocks: Blocks
    num_actors: int = 1
    cpus: float = 1
    model: Carried | None = None


class ScoringJob(Job, Protocol):
    """A job that scores a Ray dataset."""

    def answered(self, rows: ray.data.Dataset, means: ActorContext) -> ray.data.Dataset:
        """Score the rows; put aside those that the model refuses.

        Args:
            rows: `ROW`, and the columns of the job's `encoded` without `ERROR`.
            means: the actors and what they write to.

        Returns:
            The predictions, with the job's `output` columns.
        """
        ...


class Worker(Protocol):
    """A model that is loaded in an actor's process."""

    def __call__(self, rows: pa.Table) -> Answers:
        """Score rows: `ROW`, and the columns of the job's `encoded` without `ERROR`."""
        ...


class ActorJob(Job, Protocol):
    """A job whose model is loaded by `Actor`."""

    def worker(self) -> Worker:
        """Load the model."""
        ...


class Actor:
    """Answers rows, and puts those aside that the model refuses."""

    def __init__(
        self, job: ActorJob, workplace: JobState, meter: Meter, model: Carried | None = None
    ) -> None:
        began = time.perf_counter()
        self.workplace, self.meter, self.name = workplace, meter, uuid4().hex[:8]
        self.worker = at_hand(job, model).worker()
        self.meter.opened(self.name, time.perf_counter() - began)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the answers, of the job's `output`."""
        began = time.perf_counter()
        answers = self.worker(rows)
        if answers.refused.num_rows:
            first = pc.min(answers.refused[ROW]).as_py()
            self.workplace.refuse(f"{first:019d}-{self.name}", answers.refused)
        self.meter.add(self.name, time.perf_counter() - began, work_of(answers.rows))
        return answers.rows


def in_actors(rows: ray.data.Dataset, job: ActorJob, means: ActorContext) -> ray.data.Dataset:
    """Answer rows in a pool of actors.

    Args:
        rows: `ROW`, and what the job's `encoded` returned without `ERROR`.
        job: opens the model, in each of them.
        means: how many, and where to.

    Returns:
        The answers, of the job's `output`.
    """
    return rows.map_batches(
        Actor,
        fn_constructor_args=(job, means.workplace, means.meter, means.model),
        batch_size=means.blocks.rows_per_call,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=means.num_actors, max_tasks_in_flight_per_actor=means.blocks.ahead
        ),
        num_cpus=means.cpus,
    )


def work_of(rows: pa.Table) -> Work:
    """Return how much work a table of answers is."""
    return Work(rows.num_rows, _sum(rows, TOKENS_IN), _sum(rows, TOKENS_OUT))


def _sum(rows: pa.Table, name: str) -> int:
    return (pc.sum(rows[name]).as_py() or 0) if name in rows.column_names else 0


def fault_of(error: Exception) -> MillraceError:
    """Return what ended a job of Ray Data as an error of ours, and let go of the job's actors."""
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
        hint=f"mend the cause and run it again; what the actors printed is in {ray_logs()}",
    )


def _forget_frames(error: BaseException) -> None:
    """Take from an error, and from those behind it, where they were raised.

    Ray Data only drops the actors of a job that failed: they end when nothing refers to them. Of
    its own frames some do, and whoever keeps the error to try again, or to go on with another
    date, would keep these, and the GPUs and CPUs that the next job then waits for.
    """
    seen: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        each = behind.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            behind += [each.__cause__, each.__context__]
