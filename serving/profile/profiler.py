"""Find the serving configuration that takes the most requests within a latency goal, and prove it.

The event model ranks all configurations from a few measurements. Real requests then decide among
those that it puts first and the one that the pipeline file has, as the model is only sure to within
some tenths. The best is proved at the goal's rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.counted import short
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.proof import Schedule, Verdict, schedule_for
from millrace.serving.profile.ranking import choose, shortlist
from millrace.serving.profile.record import Client, Proof, bounds_of
from millrace.serving.profile.workload import (
    Considered,
    Effort,
    Sent,
    Target,
    Values,
    Workload,
    never_late,
)

PROBE_SECONDS, FEWEST_PROBED, MOST_PROBED = 2.5, 300, 5000
PROBE_STEP = 1.3
PART_REQUESTS, MOST_PARTS = 200, 5
"""A probe is in parts of so many requests and more, one after the other; the median of their p99
decides. A pause of the machine is in one of them, a queue that grows in most."""
MOST_LOST = 0.01
"""Share of requests without an answer above which a rate is too high."""
LOOKS = (2, 8, 24, 80, 240)
"""Requests over the bound that each look of a proof allows, as far as there is time for them.

At a high rate the slowest requests come in bursts, and tens of thousands are needed.
"""
RARE_LOOKS = (0, 2)
"""The same where the goal's requests are so rare that the second of `LOOKS` takes too long."""
SLACK = 1.5
"""The first of them is after so many times the requests that it needs if none depend on others."""
RARE_SHARE, MOST_SHARE = 0.25, 0.5
"""Rare requests are sent more often, up to such a share of the capacity; the larger share only
where they would take too long even so.

At a higher rate more answers are under way together and become slow together: of a small decoder at
9, 20, 45 and 90 requests/s, bursts of slow answers had 5, 5, 22 and 59 of them.
"""
HOPELESS = 200
"""After how many requests it is first looked whether a proof is hopeless."""
PROOF_SEED = 24


@dataclass(frozen=True)
class Found:
    """What a profile found.

    Attributes:
        considered: all configurations: those with real requests first, each part by capacity.
        current: the configuration of the pipeline file.
        chosen: the configuration that was chosen.
        rate: requests per second of the proof.
        proofs: what real requests said about each bound.
        client: what the load generator needed for them.
        confidence: of the proofs.
        figures: further figures of the proof in milliseconds or tokens, by name.
    """

    considered: tuple[Considered, ...]
    current: Considered
    chosen: Considered
    rate: float
    proofs: tuple[Proof, ...]
    client: Client
    confidence: float
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Decided:
    """The configuration that is proved, among all.

    Attributes:
        considered: all configurations: those with real requests first, each part by capacity.
        current: the configuration of the pipeline file.
        chosen: the configuration that was chosen.
    """

    considered: tuple[Considered, ...]
    current: Considered
    chosen: Considered


@dataclass(frozen=True)
class Profiler:
    """Profiles one version.

    Attributes:
        workload: the version, and the requests of its goal.
        goal: the goal.
        say: reports what is done.
        is_late: whether no further configuration is tried.
    """

    workload: Workload
    goal: SloSpec
    say: Callable[[str], None]
    is_late: Callable[[], bool] = never_late

    def run(self) -> Found:
        """Measure, rank, decide and prove.

        Raises:
            InputError: the version cannot answer such requests.
            WorkError: the model does not answer.
        """
        ranked = self.workload.rank()
        self.say(f"ranked {len(ranked)} configurations")
        with self.workload.running() as target:
            decided = self.decide(target, ranked)
            chosen = decided.chosen
            rate, schedule = plan_proof(
                self.goal.rate, chosen.measured or 0.0, self.workload.effort.proof_seconds
            )
            self.say(f"proving the goal at {rate:.4g} requests/s: {chosen.configuration}")
            target.serve(chosen.configuration)
            sent, proofs = prove(target, self.goal, rate, schedule)
        return Found(
            considered=decided.considered,
            current=decided.current,
            chosen=chosen,
            rate=rate,
            proofs=proofs,
            client=sent.client,
            confidence=schedule.confidence,
            figures=sent.figures,
        )

    def decide(self, target: Target, ranked: Sequence[Considered]) -> Decided:
        """Send real requests to the configurations that are ranked first, and choose one.

        The first one and the one of the pipeline file get them however late it is.

        Args:
            target: the version.
            ranked: all configurations, by their predicted capacity.
        """
        effort, current = self.workload.effort, self.workload.current
        candidates = shortlist(ranked, current, effort.shortlist)
        tried = list[Considered]()
        for each in candidates:
            if self.is_late() and tried and each.configuration != current:
                self.say(f"{each.configuration}: not tried, as the time is over")
            else:
                tried.append(self._with_capacity(target, each, effort))
        chosen, present = choose(tried, current)
        measured = [each.configuration for each in tried]
        rest = (each for each in ranked if each.configuration not in measured)
        by_capacity = sorted(tried, key=lambda each: -(each.measured or 0.0))
        return Decided((*by_capacity, *rest), present, chosen)

    def _with_capacity(self, target: Target, considered: Considered, effort: Effort) -> Considered:
        """Return a configuration with the highest rate that real requests show within the goal."""
        target.serve(considered.configuration)
        rate = measure_capacity(target, self.goal, considered.predicted or self.goal.rate, effort)
        self.say(f"{considered.configuration}: {short(rate)} requests/s within the goal")
        return replace(considered, measured=rate)


def measure_capacity(target: Target, goal: SloSpec, start: float, effort: Effort) -> float:
    """Return the highest rate at which real requests usually stay within the bounds; 0 if none do.

    A single pause of the machine is not held against a configuration here: configurations are
    compared, and what is chosen is proved with every request.

    Args:
        target: the version, served with a configuration.
        goal: the goal.
        start: the rate to begin with, in requests per second.
        effort: how many rates are tried, and how long.
    """
    low, high, rate = 0.0, np.inf, start
    for number in range(effort.probes):
        if _is_within(target, goal, rate, number, effort.longest):
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


def _is_within(target: Target, goal: SloSpec, rate: float, seed: int, longest: float) -> bool:
    many = int(np.clip(rate * PROBE_SECONDS, FEWEST_PROBED, MOST_PROBED))
    many = max(1, min(many, int(rate * longest)))
    values = target.send(rate, many, seed).values
    return all(
        np.mean(~np.isfinite(values[key])) <= MOST_LOST and usual_p99(values[key]) * 1e3 <= bound
        for key, bound in bounds_of(goal).items()
    )


def usual_p99(values: NDArray[np.float64]) -> float:
    """Return the median over the parts of a run of their p99, in the unit of the values.

    Args:
        values: float64 `[n]`, in the order of the requests; at least one.
    """
    many = int(np.clip(len(values) // PART_REQUESTS, 1, MOST_PARTS))
    parts = np.array_split(values, many - (many + 1) % 2)  # an odd number has a median of its own
    return float(np.median([np.quantile(each, 0.99, method="higher") for each in parts]))


def prove(
    target: Target, goal: SloSpec, rate: float, schedule: Schedule, seed: int = PROOF_SEED
) -> tuple[Sent, tuple[Proof, ...]]:
    """Send requests until each bound of a goal is proved, or cannot be any more.

    Args:
        target: the version, served with a configuration.
        goal: the goal.
        rate: requests per second.
        schedule: after how many requests it is looked, and what proves.
        seed: of the arrivals.

    Returns:
        What was sent, and what it says about each bound.
    """
    bounds = bounds_of(goal)

    def is_decided(values: Values) -> bool:
        pairs = [(values[key], bound / 1e3) for key, bound in bounds.items()]
        if any(schedule.is_hopeless(each, bound) for each, bound in pairs):
            return True
        return all(schedule.first_verdict(each, bound).is_proved for each, bound in pairs)

    sent = target.send(rate, schedule.looks[-1], seed, (HOPELESS, *schedule.looks), is_decided)
    proofs = (
        _proof(key, bound, sent.values, schedule.first_verdict(sent.values[key], bound / 1e3))
        for key, bound in bounds.items()
    )
    return sent, tuple(proofs)


def plan_proof(rate: float, capacity: float, seconds: float) -> tuple[float, Schedule]:
    """Return at which rate a goal is proved, and how many requests that takes.

    Where the goal's requests are too rare, they are sent more often. The last look is then at the
    end of the time.

    Args:
        rate: requests per second of the goal.
        capacity: requests per second within the bound.
        seconds: longest proof, unless even the fewest looks take longer.
    """
    for count in range(len(LOOKS), 1, -1):
        schedule = schedule_for(LOOKS[:count])
        if schedule.looks[-1] / rate <= seconds:
            return rate, schedule
    none, fewest = schedule_for(RARE_LOOKS).looks
    most = schedule_for(LOOKS[:3]).looks[-1]
    wanted = float(np.clip(RARE_SHARE * capacity, fewest / seconds, most / seconds))
    often = max(rate, min(wanted, MOST_SHARE * capacity))
    return often, Schedule((int(SLACK * none), max(fewest, int(often * seconds))))


def _proof(key: str, bound: float, values: Values, verdict: Verdict) -> Proof:
    p50, p99 = np.quantile(values[key], (0.5, 0.99), method="higher") * 1e3
    return Proof(
        bound=key,
        bound_ms=bound,
        requests=verdict.requests,
        over=verdict.over,
        allowed=verdict.allowed,
        correlation=verdict.correlation,
        p50_ms=float(p50) if np.isfinite(p50) else None,
        p99_ms=float(p99) if np.isfinite(p99) else None,
    )
