"""A batch job as a job of a Ray cluster: its request, the way to follow it, and how it ended.

The cluster itself is behind the protocol `Jobs`.
"""

import json
import secrets
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Protocol, Self

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.ray.jobs import RayJob
from millrace.serving.batch.cluster.job_log import MARK, Line, Log
from millrace.serving.batch.fingerprint import digest_of_json

ORDER = "millrace.order"
"""Key of a job's metadata: the digest of its order."""
LAST_LINES = 8
MODULE = "millrace.flows.score_job"
ERRORS = {kind.__name__: kind for kind in (MillraceError, InputError, WorkError, TransientError)}
TRANSIENT = (
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_DIED",
)
"""Ray's error types for a failure of a node or its memory, and not of the job."""

POLL_SECONDS = 1.0
CHARACTERS_PER_SECOND = 1_000_000
"""Largest number of characters of the log to fetch per second, on average. The log is always
fetched as a whole, so a long log is fetched less often.
"""
PATIENCE_SECONDS = 120.0
"""A cluster that does not answer for this long counts as gone."""
STOP_SECONDS = 20.0
"""How long `stop` waits for a job to end. Ray gives a process 3 s to end by itself; Prefect gives a
flow 30 s.
"""


@dataclass(frozen=True)
class Order:
    """What a job has to do. A flow finds the running job of an earlier flow by the order's digest.

    The code and the approved version are not part of an order. If they change, the flow still waits
    for the running job. The next run has another fingerprint and applies the change.

    Attributes:
        pipeline: name of the pipeline.
        file: digest of the pipeline file.
        date: date of the partition.
        source: the input; None: the input that the pipeline file names.
        tables: root of the tables.
        registry: address of MLflow.
        version: the version that scores; None: the approved version.
    """

    pipeline: str
    file: str
    date: str
    source: str | None
    tables: str
    registry: str
    version: int | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the whole order, in hexadecimal."""
        return digest_of_json(asdict(self))

    def new_id(self) -> str:
        """Return a unique id for a job that carries out the order."""
        return f"{MARK}-{self.pipeline}-{self.date}-{secrets.token_hex(8)}"


@dataclass(frozen=True)
class JobRequest:
    """The only command-line argument of the program that a job runs.

    Attributes:
        submission: the job's id.
        file: the pipeline file in the job's working directory.
        date: date of the partition.
        source: the input; None: the dataset's table.
        tags: tags of the run in MLflow.
        version: the version that scores; None: the approved version.
    """

    submission: str
    file: str
    date: str
    source: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    version: int | None = None

    @property
    def entrypoint(self) -> str:
        """The command of the job."""
        return shlex.join(["python", "-m", MODULE, json.dumps(asdict(self))])

    @classmethod
    def read(cls, argument: str) -> Self:
        """Parse a request from the program's argument."""
        return cls(**json.loads(argument))


class Jobs(Protocol):
    """The jobs of a cluster, which `millrace.models.ray.jobs.RayJobs` implements."""

    def job(self, id: str) -> RayJob | None:
        """Return a job; None if the cluster does not know it."""
        ...

    def log(self, id: str) -> str:
        """Return everything that a job has printed."""
        ...

    def stop(self, id: str) -> None:
        """Ask a job to end."""
        ...


def find_running(jobs: Sequence[RayJob], digest: str) -> RayJob | None:
    """Return the newest running job that carries out an order.

    Args:
        jobs: the jobs of the cluster.
        digest: the order's digest.
    """
    same = [job for job in jobs if job.is_alive and job.metadata.get(ORDER) == digest]
    return max(same, key=lambda job: job.started, default=None)


def follow(
    jobs: Jobs,
    id: str,
    on_line: Callable[[Line], None],
    *,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[RayJob, str]:
    """Wait for the end of a job, and return it and its log.

    Args:
        jobs: the jobs of the cluster.
        id: the job's id.
        on_line: called once with each of Millrace's lines in the log.
        wait: waits for a number of seconds, between two requests.
        now: returns the time in seconds.

    Raises:
        TransientError: the cluster no longer answers, or no longer knows the job.
    """
    log, answered = Log(), now()
    while True:
        try:
            # First the job, then its log: the log of a job that has ended is complete.
            job = jobs.job(id)
            text = jobs.log(id) if job is not None else ""
            answered = now()
        except TransientError as error:
            if now() - answered > PATIENCE_SECONDS:
                raise _cluster_gone(id, error.seen or error.what) from error
            wait(POLL_SECONDS)
            continue
        if job is None:
            raise _cluster_gone(id, "the cluster no longer knows the job")
        for line in log.read_new_lines(text):
            on_line(line)
        if not job.is_alive:
            return job, text
        wait(max(POLL_SECONDS, len(text) / CHARACTERS_PER_SECOND))


def stop(
    jobs: Jobs,
    id: str,
    *,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Stop a job, and return whether it has ended within `STOP_SECONDS`.

    Args:
        jobs: the jobs of the cluster.
        id: the job's id; the job need not exist.
        wait: waits for a number of seconds, between two requests.
        now: returns the time in seconds.
    """
    began = now()
    while now() - began < STOP_SECONDS:
        with suppress(TransientError):  # the next request may succeed
            jobs.stop(id)
            job = jobs.job(id)
            if job is None or not job.is_alive:
                return True
        wait(POLL_SECONDS)
    return False


def error_of(values: Mapping[str, str | None]) -> MillraceError:
    """Return the error that a job ended with.

    Args:
        values: what `MillraceError.as_dict` returned for the error in the job.
    """
    kind = ERRORS.get(values["error"] or "", WorkError)
    return kind(
        values["what"] or "", seen=values["seen"], valid=values["valid"], hint=values["next"]
    )


def fault_of(job: RayJob, log: str) -> WorkError:
    """Return the error of a job that ended without an outcome.

    Args:
        job: the job.
        log: everything that it printed.
    """
    if job.status == "STOPPED":
        return WorkError(
            f"the job {job.id} was stopped; nothing was committed",
            hint="run the job again; the rows that it has scored are kept",
        )
    # A negative exit code is a signal, most often because a node ran out of memory.
    was_killed = job.exit_code is not None and (job.exit_code < 0 or job.exit_code > 128)
    kind = TransientError if was_killed or job.error_type in TRANSIENT else WorkError
    last_lines = [line for line in log.splitlines() if line.strip()][-LAST_LINES:]
    return kind(
        f"the job {job.id} ended without reporting an outcome",
        seen="\n    ".join(last_lines) or job.message or job.status,
        hint=f"read the whole log with: ray job logs {job.id}; the rows already scored are kept",
    )


def _cluster_gone(id: str, seen: str) -> TransientError:
    return TransientError(
        f"the cluster of the job {id} is gone",
        seen=seen,
        hint="start the cluster's head node again, or repair the connection to it; the next run "
        "follows the job if it still runs, and resumes its work if it died",
    )
