"""The end of a batch job that shares its machine with online models.

The job gets the cores that are left. So its speed is measured per free core, and the free cores of
the time to come are foreseen: soon as they are now, later with the day as it went yesterday, by the
arrivals that the guard recorded.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from millrace.serving.batch.beside_online.online_watch import Moment
from millrace.serving.batch.monitoring.throughput import (
    LEAST_COMMITS,
    Sample,
    Unit,
    commits_of,
    recent_commits,
    unit_of,
)

STEP = 10.0
"""Seconds of the steps in which the time to come is gone through."""
MEMORY_SECONDS = 600.0
"""After this time the present counts for a third, and yesterday for the rest."""
LEAST_FREE = 0.05
"""Share of the cores that the job has at least: it is slowed, never starved for good."""
LONGEST = 7 * 24 * 3600.0

Shape = Callable[[float], float]
"""Load in so many seconds from now, yesterday, over the load since the start of the job then."""


def as_now(_: float) -> float:
    """Return 1: the load stays as it is."""
    return 1.0


def shape_of(yesterday: npt.NDArray[np.int64], elapsed: float) -> Shape:
    """Return how the load goes on, if today is as yesterday.

    Args:
        yesterday: int64 `[minutes]`, the requests of each minute from a day before the start of the
            job on; it goes round.
        elapsed: seconds since the start of the job.
    """
    so_far = yesterday[: int(elapsed // 60) + 1].mean()
    if not so_far:
        return as_now
    return lambda later: float(yesterday[int((elapsed + later) // 60) % len(yesterday)] / so_far)


def seconds_left_beside(
    samples: Sequence[Sample],
    moments: Sequence[Moment],
    total: int,
    cores: int,
    shape: Shape = as_now,
    unit: Unit | None = None,
) -> float | None:
    """Return the seconds until the job ends.

    Args:
        samples: as for `throughput.seconds_left`.
        moments: what the watch of the online models found, the earliest first; its seconds are
            since the start of the job.
        total: all the work, in `unit`.
        cores: cores of this machine.
        shape: how the load goes on.
        unit: what to count; None: tokens, or rows if there are no tokens.

    Returns:
        None if there are fewer than three commits, or nobody watched.
    """
    unit = unit or unit_of(samples)
    commits = commits_of(samples, unit)
    rest = total - commits[-1][1]
    if rest <= 0:
        return 0.0
    recent = recent_commits(commits, samples[-1].seconds)
    (began, before), (ended, after) = recent[0], recent[-1]
    seen = _between(moments, began, ended)
    free = sum(seconds * _free(each, cores) for seconds, each in seen)
    if len(recent) < LEAST_COMMITS or free <= 0:
        return None
    return _spend(rest * free / (after - before), seen, cores, shape)


def _between(moments: Sequence[Moment], began: float, ended: float) -> list[tuple[float, Moment]]:
    """Return the moments of an interval, each with the seconds that it tells of."""
    start = Moment(0.0, 0.0, is_paused=False)
    found = []
    for before, each in pairwise([start, *moments]):
        seconds = min(each.seconds, ended) - max(before.seconds, began)
        if seconds > 0:
            found.append((seconds, each))
    return found


def _free(moment: Moment, cores: int) -> float:
    return 0.0 if moment.is_paused else max(cores - moment.others, LEAST_FREE * cores)


def _spend(
    core_seconds: float, seen: Sequence[tuple[float, Moment]], cores: int, shape: Shape
) -> float:
    """Return the seconds until the job has got so much time of the cores."""
    whole = sum(seconds for seconds, _ in seen)
    others = sum(seconds * each.others for seconds, each in seen) / whole
    paused = sum(seconds for seconds, each in seen if each.is_paused) / whole
    at = 0.0
    while at < LONGEST:
        now = math.exp(-at / MEMORY_SECONDS)
        load = now + (1 - now) * shape(at)
        free = max(cores - others * load, LEAST_FREE * cores)
        free *= 1 - min(paused * load, 1 - LEAST_FREE)
        if core_seconds <= free * STEP:
            return at + core_seconds / free
        core_seconds -= free * STEP
        at += STEP
    return LONGEST
