"""Follows a job on a Ray cluster to its end, and ends it."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from millrace.models.common.errors import TransientError
from millrace.models.common.ray_jobs import RayJob
from millrace.serving.batch.cluster.job_log import Line, Log

LOOK_SECONDS = 1.0
CHARACTERS_PER_SECOND = 1_000_000
"""Of the log, which is fetched as a whole each time: a long one is looked at less often."""
PATIENCE_SECONDS = 120.0
"""For a cluster that does not answer any more."""
STOP_SECONDS = 20.0
"""Ray gives a process 3 s to end by itself; Prefect a flow 30 s."""


class Jobs(Protocol):
    """The jobs of a cluster, as `millrace.models.common.ray_jobs.RayJobs` has them."""

    def job(self, id: str) -> RayJob | None:
        """Return a job; None where the cluster does not know it."""
        ...

    def log(self, id: str) -> str:
        """Return all that a job has printed."""
        ...

    def stop(self, id: str) -> None:
        """Ask for the end of a job."""
        ...


def follow(
    jobs: Jobs,
    id: str,
    tell: Callable[[Line], None],
    *,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> tuple[RayJob, str]:
    """Return a job that has ended, and its log.

    Args:
        jobs: of the cluster.
        id: of the job.
        tell: called with each line of ours, once.
        wait: between two looks, in seconds.
        now: the time in seconds.

    Raises:
        TransientError: the cluster does not answer any more, or has forgotten the job.
    """
    log, answered = Log(), now()
    while True:
        try:
            # In this order: the log of a job that has ended is whole.
            job = jobs.job(id)
            text = jobs.log(id) if job is not None else ""
            answered = now()
        except TransientError as error:
            if now() - answered > PATIENCE_SECONDS:
                raise _gone(id, error.seen or error.what) from error
            wait(LOOK_SECONDS)
            continue
        if job is None:
            raise _gone(id, "the cluster does not know it any more")
        for line in log.news(text):
            tell(line)
        if not job.is_alive:
            return job, text
        wait(max(LOOK_SECONDS, len(text) / CHARACTERS_PER_SECOND))


def stop(
    jobs: Jobs,
    id: str,
    *,
    wait: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """End a job, and return whether it has ended within `STOP_SECONDS`.

    Args:
        jobs: of the cluster.
        id: of the job, which need not be there.
        wait: between two looks, in seconds.
        now: the time in seconds.
    """
    began = now()
    while now() - began < STOP_SECONDS:
        with suppress(TransientError):  # the next look may succeed
            jobs.stop(id)
            job = jobs.job(id)
            if job is None or not job.is_alive:
                return True
        wait(LOOK_SECONDS)
    return False


def _gone(id: str, seen: str) -> TransientError:
    return TransientError(
        f"the cluster of the job {id} is gone",
        seen=seen,
        hint="start its head again, or see to the way there; a job that still runs is followed by "
        "the next run, and of one that died what it had done is kept",
    )
