"""The profile of a version that answers at once: instances, threads, batches and queue delay."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.arrays import Array
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.ranking import by_capacity
from millrace.serving.profile.record import MEMORY, bounds_of
from millrace.serving.profile.search import (
    BatchConfiguration,
    Demand,
    Setup,
    capacity,
    configurations,
    predict,
    setups,
)
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.workload import (
    Configuration,
    Considered,
    Effort,
    Kept,
    Sent,
    Values,
    client_of,
    never,
    never_late,
)
from millrace.serving.triton.version_config import triton_kind
from millrace.serving.triton.version_folder import Artifact

BOUND = "p99_ms"


@dataclass(frozen=True)
class BatchWorkload:
    """A version that answers at once, with its goal; a `Workload`.

    Attributes:
        artifact: the version.
        rows: rows to send, by input.
        goal: the goal, with `p99_ms`.
        cores: cores of the machine that the server may use.
        kept: what was measured before.
        say: reports what is done.
        is_late: whether no further instances and threads are measured.
        times: what `rank` measured of each number of instances and threads.
    """

    artifact: Artifact
    rows: Mapping[str, Array]
    goal: SloSpec
    cores: int
    kept: Kept
    say: Callable[[str], None]
    is_late: Callable[[], bool] = never_late
    effort: ClassVar[Effort] = Effort()
    times: dict[Setup, ServiceTimes] = field(default_factory=dict)

    @cached_property
    def is_batched(self) -> bool:
        """Whether Triton may batch requests of the model."""
        signature = triton_kind(self.artifact).signature(self.artifact)
        return signature is None or signature.batches

    @cached_property
    def current(self) -> BatchConfiguration:
        """The configuration of the pipeline file."""
        found = configured(self.artifact.serving)
        if self.is_batched:
            return found
        return BatchConfiguration(found.setup, max(self.goal.rows))

    def rank(self) -> list[Considered]:
        """Measure batches with each number of instances and threads, and rank by them.

        Those of the pipeline file come first; where it is late, the others are left out.
        """
        own = self.current.setup
        self.times[own] = self._times(own)
        for each in setups(self.cores):
            if each == own:
                continue
            if self.is_late():
                self.say(f"{each}: not tried, as the time is over")
            else:
                self.times[each] = self._times(each)
        all_of_them = configurations(
            self.times, max(self.goal.rows), self.is_batched, self.artifact.serving.max_batch_size
        )
        if self.current not in all_of_them:
            all_of_them.append(self.current)
        return rank(all_of_them, self.times, self.goal)

    @contextmanager
    def running(self) -> Iterator["BatchTarget"]:
        """Run a Triton with the version."""
        with profiled_model(self.artifact, self.rows) as model:
            yield BatchTarget(model, self.goal)

    def _times(self, setup: Setup) -> ServiceTimes:
        name = f"times-{setup.instances}x{setup.threads}"
        known = self.kept.read(name, ServiceTimes.from_json)
        if known is not None:
            self.say(f"{setup}: measured before")
            return known
        self.say(f"{setup}: measuring batches")
        serving = self.artifact.serving
        times = measure_times(self.artifact, self.rows, serving, setup, self.goal.rows)
        self.kept.write(name, times.to_json())
        return times


@dataclass(frozen=True)
class BatchTarget:
    """A version on a Triton of its own, and requests of a goal; a `Target`.

    Attributes:
        model: the version.
        goal: the goal.
    """

    model: ProfiledModel
    goal: SloSpec

    def serve(self, configuration: Configuration) -> None:
        """Serve a configuration, and warm it up."""
        self.model.serve(configuration)

    def send(
        self,
        rate: float,
        requests: int,
        seed: int,
        looks: Sequence[int] = (),
        is_decided: Callable[[Values], bool] = never,
    ) -> Sent:
        """Send requests of independent clients."""

        def decides(latency: NDArray[np.float64]) -> bool:
            return is_decided({BOUND: latency})

        arrivals = Demand.of(self.goal, requests, seed).at(rate)
        load = self.model.send(arrivals.times, arrivals.rows, looks=looks, is_decided=decides)
        figures = {MEMORY: self.model.backend_memory() / 1e6}
        return Sent({BOUND: load.latency}, client_of(load), figures)


def configured(serving: ServingSpec) -> BatchConfiguration:
    """Return the configuration of a pipeline file."""
    setup = Setup(serving.instance_count, serving.intra_op_thread_count)
    delay = serving.max_queue_delay_microseconds
    most = serving.max_batch_size
    return BatchConfiguration(setup, serving.preferred_batch_size or most, delay, most)


def rank(
    considered: Sequence[BatchConfiguration], times: Mapping[Setup, ServiceTimes], goal: SloSpec
) -> list[Considered]:
    """Return the configurations with what the event model expects of them, best first."""
    demand = Demand.of(goal)

    def expected(each: BatchConfiguration) -> Considered:
        at_goal = predict(each, times[each.setup], demand, goal.rate)
        most = capacity(each, times[each.setup], demand)
        return Considered(each, {BOUND: at_goal.p99_ms}, 0.0 if most is None else most.rate)

    return by_capacity(map(expected, considered), bounds_of(goal))
