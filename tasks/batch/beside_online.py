"""A batch job on the machine of `millrace up`: the goals it yields to, and its forecast."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import EMBEDDED, Installation, is_this_machine
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.batch.beside_online.beside_forecast import (
    Shape,
    as_now,
    seconds_left_beside,
    shape_of,
)
from millrace.serving.batch.beside_online.online_watch import OnlineWatch
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.batch.job_state import SHORT
from millrace.serving.batch.monitoring.throughput import Sample, Unit
from millrace.serving.guard.arrivals_table import read_arrivals
from millrace.serving.replicas.files import servers_of
from millrace.serving.triton.served_load import read_metrics
from millrace.tasks.live_terms import LiveTerms
from millrace.tasks.progress import log

DAY = 24 * 3600.0
MINUTES = 24 * 60


def watch_online(pipeline: Pipeline, installation: Installation, fingerprint: str) -> OnlineWatch:
    """Return the watch that pauses a job for the live models with a goal.

    It watches nothing if there are none on this machine, or the pipeline does not want it.

    Args:
        pipeline: the job's pipeline.
        installation: where the registry and the servers are.
        fingerprint: the job's fingerprint.
    """
    goals = live_goals(installation) if pipeline.batch.yields else {}
    if goals:
        log.info("the job gives way to the goals of %s", ", ".join(sorted(goals)))
    pause = PauseFile(installation.run / f"batch-{fingerprint[:SHORT]}.paused")
    return OnlineWatch(goals, lambda: servers_of(installation), pause)


def live_goals(installation: Installation) -> dict[str, SloSpec]:
    """Return `serving.slo` of each live version, by model, if Triton runs on this machine."""
    if installation.ray_address != EMBEDDED or not _is_served_here(installation):
        return {}
    terms = LiveTerms(installation).by_model().items()
    return {model: each.goal for model, each in terms if each.goal is not None}


def _is_served_here(installation: Installation) -> bool:
    server = servers_of(installation)[0]
    if not is_this_machine(f"http://{server.http}"):
        return False
    try:
        read_metrics(server)
    except MillraceError:
        return False
    return True


@dataclass
class BesideForecast:
    """Foresees the end of a job that yields to online requests.

    Attributes:
        installation: where the arrivals are recorded.
        watch: what the online models did so far.
    """

    installation: Installation
    watch: OnlineWatch

    def seconds_left(self, samples: Sequence[Sample], total: int, unit: Unit) -> float | None:
        """Return the seconds until the job ends; None if too little is known."""
        now = time.monotonic() - self.watch.began
        ahead = now - samples[-1].seconds  # the watch began before the job
        moments = [replace(each, seconds=each.seconds - ahead) for each in self.watch.moments]
        cores = os.cpu_count() or 1
        return seconds_left_beside(samples, moments, total, cores, self._shape(now), unit)

    def _shape(self, now: float) -> Shape:
        return as_now if self._yesterday is None else shape_of(self._yesterday, now)

    @cached_property
    def _yesterday(self) -> npt.NDArray[np.int64] | None:
        """The requests by minute, from a day before the start of the job; None if none is known."""
        began = time.time() - (time.monotonic() - self.watch.began) - DAY
        return requests_by_minute(self.installation, self.watch.goals, began)


def requests_by_minute(
    installation: Installation, goals: Mapping[str, SloSpec], began: float
) -> npt.NDArray[np.int64] | None:
    """Return the requests of each minute of a day, int64 `[1440]`; None if none is recorded.

    Args:
        installation: where the arrivals are recorded.
        goals: the models that count.
        began: start of the day, in seconds since 1970.
    """
    try:
        times = read_arrivals(installation, tuple(goals), began, began + DAY).times
    except (OSError, MillraceError) as error:
        log.debug("yesterday's arrivals cannot be read: %s", error)
        return None
    if not len(times):
        return None
    return np.bincount(((times - began) // 60).astype(np.int64), minlength=MINUTES)[:MINUTES]
