"""Find the serving configuration that takes the most requests within a latency goal, and prove it.

The event model ranks all configurations from a few measurements. Real requests then decide among
those that it puts first and the one that the pipeline file has, as the model is only sure to within
some tenths. The best is proved at the goal's rate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.arrays import Array
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.proof import Schedule, Verdict, schedule_for
from millrace.serving.profile.ranking import (
    Considered,
    choose,
    configurations_of,
    configured,
    rank,
    shortlist,
)
from millrace.serving.profile.record import Client, Proof
from millrace.serving.profile.search import (
    BatchConfiguration,
    Demand,
    Setup,
    configurations,
    setups,
)
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.open_loop import SentLoad
from millrace.serving.triton.version_config import triton_kind
from millrace.serving.triton.version_folder import Artifact

PROBE_SECONDS, FEWEST_PROBED, MOST_PROBED = 2.5, 300, 5000
LONGEST_PROBE = 10.0
"""Seconds after which even the fewest requests are not waited for."""
PROBES, PROBE_STEP = 5, 1.3
PROOF_SECONDS = 90.0
"""Longest proof, unless even the first look takes longer."""
LOOKS = (2, 8, 24, 80, 240)
"""Requests over the bound that each look of a proof allows, as far as there is time for them.

At a high rate the slowest requests come in bursts, and tens of thousands are needed.
"""
HOPELESS = 200
"""After how many requests it is first looked whether a proof is hopeless."""


@dataclass(frozen=True)
class Found:
    """What a profile found.

    Attributes:
        considered: all configurations: those with real requests first, each part by capacity.
        current: the configuration of the pipeline file.
        chosen: the configuration that was chosen.
        rate: requests per second of the proof.
        proof: what real requests said about the bound.
        client: what the load generator needed for them.
        schedule: how the proof was planned.
        load: the requests of the proof.
        times: what was measured, by instances and threads.
    """

    considered: tuple[Considered, ...]
    current: Considered
    chosen: Considered
    rate: float
    proof: Proof
    client: Client
    schedule: Schedule
    load: SentLoad
    times: Mapping[Setup, ServiceTimes]


@dataclass(frozen=True)
class Profiler:
    """Profiles one version of a model that answers at once.

    Attributes:
        artifact: the version.
        rows: rows to send, by input.
        goal: the goal, with `p99_ms`.
        cores: cores of the machine that the server may use.
        measured: returns what was measured before for instances and threads; None if nothing was.
        keep: keeps what was measured, so that an interrupted profile goes on from there.
        say: reports what is done.
    """

    artifact: Artifact
    rows: Mapping[str, Array]
    goal: SloSpec
    cores: int
    measured: Callable[[Setup], ServiceTimes | None]
    keep: Callable[[Setup, ServiceTimes], None]
    say: Callable[[str], None]

    def run(self) -> Found:
        """Measure, rank, decide and prove.

        Raises:
            WorkError: the model does not answer.
        """
        signature = triton_kind(self.artifact).signature(self.artifact)
        batches = signature is None or signature.batches
        current = configured(self.artifact.serving)
        if not batches:
            current = replace(current, max_batch_size=max(self.goal.rows), delay=0)
        found = setups(self.cores)
        if current.setup not in found:
            found.append(current.setup)
        times = {each: self._times(each) for each in found}
        all_of_them = configurations(found, max(self.goal.rows), batches)
        if current not in all_of_them:
            all_of_them.append(current)
        self.say(f"ranking {len(all_of_them)} configurations")
        ranked = rank(all_of_them, times, self.goal)
        with profiled_model(self.artifact, self.rows) as model:
            decided = [self._with_capacity(model, each) for each in shortlist(ranked, current)]
            chosen, present = choose(decided, current)
            rate, schedule = plan_proof(self.goal.rate, chosen.measured or 0.0)
            self.say(f"proving p99 at {rate:g} requests/s: {chosen.configuration}")
            load, verdict = self._prove(model, chosen.configuration, rate, schedule)
        rest = [each for each in ranked if each.configuration not in configurations_of(decided)]
        tried = sorted(decided, key=lambda each: -(each.measured or 0.0))
        return Found(
            considered=(*tried, *rest),
            current=present,
            chosen=chosen,
            rate=rate,
            proof=_proof(self.goal, load, verdict),
            client=_client(load),
            schedule=schedule,
            load=load,
            times=times,
        )

    def _times(self, setup: Setup) -> ServiceTimes:
        known = self.measured(setup)
        if known is not None:
            self.say(f"{setup}: measured before")
            return known
        self.say(f"{setup}: measuring batches")
        serving = self.artifact.serving
        times = measure_times(self.artifact, self.rows, serving, setup, self.goal.rows)
        self.keep(setup, times)
        return times

    def _with_capacity(self, model: ProfiledModel, considered: Considered) -> Considered:
        """Return a configuration with the highest rate that real requests show within the bound."""
        configuration = considered.configuration
        model.serve(configuration)
        rate = measure_capacity(model, self.goal, considered.predicted or self.goal.rate)
        self.say(f"{configuration}: {rate:.0f} requests/s within {self.goal.p99_ms:g} ms")
        return replace(considered, measured=rate)

    def _prove(
        self,
        model: ProfiledModel,
        configuration: BatchConfiguration,
        rate: float,
        schedule: Schedule,
    ) -> tuple[SentLoad, Verdict]:
        model.serve(configuration)
        bound = (self.goal.p99_ms or np.inf) / 1e3
        demand = Demand.of(self.goal, schedule.looks[-1]).at(rate)

        def is_decided(latency: NDArray[np.float64]) -> bool:
            if schedule.is_hopeless(latency, bound):
                return True
            return len(latency) > HOPELESS and schedule.judge(latency, bound).is_proved

        looks = (HOPELESS, *schedule.looks)
        load = model.send(demand.times, demand.rows, looks=looks, is_decided=is_decided)
        verdicts = list(schedule.judge_all(load.latency, bound))
        proved = (each for each in verdicts if each.is_proved)
        last = verdicts[-1] if verdicts else schedule.judge(load.latency, bound)
        return load, next(proved, last)


def measure_capacity(model: ProfiledModel, goal: SloSpec, start: float) -> float:
    """Return the highest rate at which real requests stay within the bound; 0 if none do.

    Args:
        model: the model, which serves a configuration.
        goal: the goal.
        start: the rate to begin with, in requests per second.
    """
    low, high, rate = 0.0, np.inf, start
    for number in range(PROBES):
        if _is_within(model, goal, rate, number):
            low = max(low, rate)
        else:
            high = min(high, rate)
        if not np.isfinite(high):
            rate = low * PROBE_STEP
        elif low == 0:
            rate = high / 4
        else:
            rate = float(np.sqrt(low * high))
    return low


def _is_within(model: ProfiledModel, goal: SloSpec, rate: float, seed: int) -> bool:
    many = int(np.clip(rate * PROBE_SECONDS, FEWEST_PROBED, MOST_PROBED))
    many = max(1, min(many, int(rate * LONGEST_PROBE)))
    arrivals = Demand.of(goal, many, seed).at(rate)
    latency = model.send(arrivals.times, arrivals.rows).latency
    return bool(np.quantile(latency, 0.99, method="higher") * 1e3 <= (goal.p99_ms or np.inf))


def plan_proof(rate: float, capacity: float) -> tuple[float, Schedule]:
    """Return at which rate a goal is proved, and how many requests that takes.

    Where the goal's requests are so rare that even the first look takes too long, they are sent
    more often, but not more often than half of what the configuration takes.

    Args:
        rate: requests per second of the goal.
        capacity: requests per second within the bound.
    """
    for count in range(len(LOOKS), 1, -1):
        schedule = schedule_for(LOOKS[:count])
        if schedule.looks[-1] / rate <= PROOF_SECONDS:
            return rate, schedule
    return max(rate, min(schedule.looks[-1] / PROOF_SECONDS, capacity / 2)), schedule


def _proof(goal: SloSpec, load: SentLoad, verdict: Verdict) -> Proof:
    p50, p99 = np.quantile(load.latency, (0.5, 0.99), method="higher") * 1e3
    return Proof(
        bound="p99_ms",
        bound_ms=goal.p99_ms or 0.0,
        requests=verdict.requests,
        over=verdict.over,
        allowed=verdict.allowed,
        correlation=verdict.correlation,
        p50_ms=float(p50) if np.isfinite(p50) else None,
        p99_ms=float(p99) if np.isfinite(p99) else None,
    )


def _client(load: SentLoad) -> Client:
    lateness = float(np.quantile(load.lateness, 0.99)) * 1e3
    return Client(core_share=load.client_share, lateness_p99_ms=max(0.0, lateness))
