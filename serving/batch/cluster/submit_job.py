"""A batch job as a job of a Ray cluster: what it is known by, what it is told, and how it ended.

Nothing here talks to a cluster.
"""

import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Self

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.common.ray_jobs import RayJob
from millrace.serving.batch.cluster.job_log import MARK
from millrace.serving.batch.fingerprint import digest_of_json

ORDER = "millrace.order"
"""Key of a job's metadata: the digest of what was asked for."""
LAST_LINES = 8
MODULE = "millrace.flows.score_job"
KINDS = {kind.__name__: kind for kind in (MillraceError, InputError, WorkError, TransientError)}
PASSING = (
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
    "JOB_SUPERVISOR_ACTOR_START_FAILURE",
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE",
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE",
    "JOB_SUPERVISOR_ACTOR_DIED",
)
"""Ray's words for what a node or its memory did, and not the job."""


@dataclass(frozen=True)
class Order:
    """What is asked for: by its digest a flow that comes back finds the job of the one before.

    Code and the approved version are not of it: a job that runs is waited for, and what changed
    meanwhile is done by the next run, which finds another fingerprint.

    Attributes:
        pipeline: its name.
        file: digest of its file.
        date: the partition.
        source: the rows; None for what the pipeline says.
        tables: root of the tables.
        registry: address of MLflow.
        version: to score with; None for the approved one.
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
        """SHA-256 of all of it, in hexadecimal."""
        return digest_of_json(asdict(self))

    def new_id(self) -> str:
        """Return an id for a job that does it, which nobody had before."""
        return f"{MARK}-{self.pipeline}-{self.date}-{secrets.token_hex(8)}"


@dataclass(frozen=True)
class JobRequest:
    """What a job is told, as the one argument of its program.

    Attributes:
        submission: its id.
        file: the pipeline file in its working directory.
        date: the partition.
        source: the rows; None for the dataset's table.
        tags: of the run in MLflow.
        version: to score with; None for the approved one.
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
        """Return what an argument says."""
        return cls(**json.loads(argument))


def which(jobs: Sequence[RayJob], digest: str) -> RayJob | None:
    """Return the job to follow: the newest that is alive and does what was asked for.

    Args:
        jobs: of the cluster.
        digest: of the order.
    """
    same = [job for job in jobs if job.is_alive and job.metadata.get(ORDER) == digest]
    return max(same, key=lambda job: job.started, default=None)


def error_of(values: Mapping[str, str | None]) -> MillraceError:
    """Return the error that a job ended with.

    Args:
        values: what its `as_dict` returned.
    """
    kind = KINDS.get(values["error"] or "", WorkError)
    return kind(
        values["what"] or "", seen=values["seen"], valid=values["valid"], hint=values["next"]
    )


def fault_of(job: RayJob, log: str) -> WorkError:
    """Return why a job ended without an outcome.

    Args:
        job: that has ended.
        log: all that it printed.
    """
    if job.status == "STOPPED":
        return WorkError(
            f"the job {job.id} was stopped; nothing was committed",
            hint="run it again; what it had done is kept",
        )
    # A negative code is a signal's, most often of a node that has no memory left.
    was_killed = job.exit_code is not None and (job.exit_code < 0 or job.exit_code > 128)
    kind = TransientError if was_killed or job.error_type in PASSING else WorkError
    return kind(
        f"the job {job.id} ended without an outcome",
        seen="\n    ".join(last_lines(log)) or job.message or job.status,
        hint=f"see all of it with: ray job logs {job.id}; what it had done is kept",
    )


def last_lines(log: str) -> list[str]:
    """Return the last lines of a log that say something."""
    return [line for line in log.splitlines() if line.strip()][-LAST_LINES:]
