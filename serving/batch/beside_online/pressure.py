"""How near the online models are to their goals, and whether a batch job stands still for them.

It measures nothing and stops nothing: both are functions of two looks at Triton's metrics and of
the clock.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.triton.served_load import ModelLoad

TAIL = math.log(100)
"""p99 of an exponential distribution, over its mean. Triton tells the mean time in the queue only;
of one server with random arrivals the time in the system is exponential (M/M/1)."""
PAUSE_AT = 0.8
"""Share of a bound from which a job stands still."""
RESUME_BELOW = 0.5
"""Share of a bound below which it may go on."""
CALM_SECONDS = 2.0
"""How long the share must stay there."""
LONGEST_CALM = 60.0
AGAIN_SECONDS = 5.0
"""Pressure that is back so soon is the job's own, and makes the next calm twice as long. What comes
later may be a pause of the machine, for which a long stand still is no help."""
UNKNOWN_SECONDS = 10.0
"""How long a pause lasts if the metrics cannot be read any more."""


@dataclass(frozen=True)
class Pressure:
    """How near a model is to its goal.

    Attributes:
        share: its latency as a share of the bound.
        model: the model.
        bound: the key of the bound in `serving.slo`.
    """

    share: float
    model: str
    bound: str

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.model} is at {self.share:.0%} of its {self.bound}"


def largest_pressure(goals: Mapping[str, SloSpec], loads: Iterable[ModelLoad]) -> Pressure | None:
    """Return the pressure of the model that is nearest to a bound; None without requests.

    Args:
        goals: the goals by model.
        loads: what each loaded version did since the last look.
    """
    found = [each for load in loads if load.model in goals for each in _of(goals[load.model], load)]
    return max(found, key=lambda each: each.share, default=None)


def _of(goal: SloSpec, load: ModelLoad) -> Iterable[Pressure]:
    batch_p99 = None
    if load.queue_ms is not None:
        batch_p99 = (load.compute_ms or 0.0) + TAIL * load.queue_ms
    for bound, limit, seen in (
        ("p99_ms", goal.p99_ms, batch_p99),
        ("ttft_p99_ms", goal.ttft_p99_ms, load.ttft_p99_ms),
        ("tpot_p99_ms", goal.tpot_p99_ms, load.tpot_p99_ms),
    ):
        if limit is not None and seen is not None:
            yield Pressure(seen / limit, load.model, bound)


@dataclass(frozen=True)
class Standing:
    """Whether a job stands still.

    Attributes:
        is_paused: whether it does.
        calm_since: the moment since which it could go on; None if it could not.
        calm: how long that must last, in seconds.
        resumed: the moment of the last end of a pause.
    """

    is_paused: bool = False
    calm_since: float | None = None
    calm: float = CALM_SECONDS
    resumed: float = -math.inf


def decide(before: Standing, now: float, share: float | None) -> Standing:
    """Return whether the job stands still from now on.

    Args:
        before: what was decided last.
        now: seconds of a clock that only goes forward.
        share: the largest pressure, 0 without requests; None if it is not known.
    """
    if not before.is_paused:
        if share is None or share < PAUSE_AT:
            return before
        is_again = now - before.resumed < AGAIN_SECONDS
        calm = min(2 * before.calm, LONGEST_CALM) if is_again else CALM_SECONDS
        return Standing(is_paused=True, calm=calm)
    if share is not None and share >= RESUME_BELOW:
        return Standing(is_paused=True, calm=before.calm)
    since = now if before.calm_since is None else before.calm_since
    wanted = before.calm if share is not None else max(before.calm, UNKNOWN_SECONDS)
    if now - since >= wanted:
        return Standing(calm=before.calm, resumed=now)
    return Standing(is_paused=True, calm_since=since, calm=before.calm)
