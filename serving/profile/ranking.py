"""Which configurations may be the best ones, and which one is chosen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.search import (
    BatchConfiguration,
    Demand,
    Prediction,
    Setup,
    capacity,
    predict,
)
from millrace.serving.profile.service_times import ServiceTimes

SHORTLIST = 3
"""How many of the best configurations get real requests, beside the one of the pipeline file."""
ALIKE = 0.7
"""Share of the best capacity from which a configuration may be the best one after all."""
GAIN = 1.05
"""How many times as much a configuration must take to replace the one of the pipeline file."""


@dataclass(frozen=True)
class Considered:
    """A configuration, and what is known of it.

    Attributes:
        configuration: the configuration.
        at_goal: what the event model expects at the goal's rate.
        capacity: what it expects at the highest rate within the bound; None if no rate is.
        measured: highest rate at which real requests stayed within the bound, in requests per
            second; None if none were sent.
    """

    configuration: BatchConfiguration
    at_goal: Prediction
    capacity: Prediction | None
    measured: float | None = None

    @property
    def predicted(self) -> float:
        """The highest rate that the event model expects to stay within the bound; 0 if none."""
        return 0.0 if self.capacity is None else self.capacity.rate


def configured(serving: ServingSpec) -> BatchConfiguration:
    """Return the configuration of a pipeline file."""
    setup = Setup(serving.instance_count, serving.intra_op_thread_count)
    delay = serving.max_queue_delay_microseconds
    return BatchConfiguration(setup, serving.max_batch_size, delay)


def rank(
    considered: Sequence[BatchConfiguration], times: Mapping[Setup, ServiceTimes], goal: SloSpec
) -> list[Considered]:
    """Return the configurations with what the event model expects of them, best first."""
    demand = Demand.of(goal)
    found = [
        Considered(
            each,
            predict(each, times[each.setup], demand, goal.rate),
            capacity(each, times[each.setup], demand),
        )
        for each in considered
    ]
    return sorted(found, key=lambda each: (-each.predicted, each.at_goal.p99_ms))


def shortlist(ranked: Sequence[Considered], current: BatchConfiguration) -> list[Considered]:
    """Return the configurations that may be the best one, and the one of the pipeline file.

    One of each number of instances and threads comes first, as these differ most.
    """
    best = ranked[0].predicted
    alike = [each for each in ranked if each.predicted >= ALIKE * best]
    seen: set[Setup] = set()
    first: list[Considered] = []
    for each in alike:
        if each.configuration.setup not in seen:
            seen.add(each.configuration.setup)
            first.append(each)
    rest = [each for each in alike if each not in first]
    chosen = [*first, *rest][:SHORTLIST]
    if current not in configurations_of(chosen):
        chosen.append(next(each for each in ranked if each.configuration == current))
    return chosen


def choose(
    decided: Sequence[Considered], current: BatchConfiguration
) -> tuple[Considered, Considered]:
    """Return the configuration that takes most, and the one of the pipeline file.

    The one of the pipeline file stays unless another takes clearly more.
    """
    present = next(each for each in decided if each.configuration == current)
    best = max(decided, key=lambda each: each.measured or 0.0)
    is_better = (best.measured or 0.0) > GAIN * (present.measured or 0.0)
    return (best if is_better else present), present


def configurations_of(considered: Iterable[Considered]) -> set[BatchConfiguration]:
    """Return the configurations alone."""
    return {each.configuration for each in considered}
