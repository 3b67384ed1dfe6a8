"""The configurations of a streaming model, and what the event model expects of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec, mean_of
from millrace.serving.profile.ranking import by_capacity
from millrace.serving.profile.record import bounds_of
from millrace.serving.profile.search import SEED, draw_sizes, highest_rate
from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.stream_twin import StreamArrivals, StreamOutcome, simulate_streams
from millrace.serving.profile.workload import Considered

SEQUENCES = (1, 2, 4, 8, 16, 32, 64)
REQUESTS = 400
"""Requests of a simulation; the p99 is the fourth largest time."""
HIGHEST = 1.5
"""Where the search for a rate begins, as a share of what the most answers at a time take."""


@dataclass(frozen=True, order=True)
class StreamConfiguration:
    """One configuration of a model that streams its answers.

    Attributes:
        max_num_seqs: most answers under way.
    """

    max_num_seqs: int

    @property
    def settings(self) -> dict[str, int]:
        """The keys of the pipeline file's `serving`, with their values."""
        return {"generation.max_num_seqs": self.max_num_seqs}

    @property
    def cells(self) -> dict[str, str]:
        """What a table shows of the configuration, by title of the column."""
        return {"max_num_seqs": str(self.max_num_seqs)}

    @property
    def group(self) -> int:
        """Each configuration is a group of its own."""
        return self.max_num_seqs

    def __str__(self) -> str:
        """Return the configuration as a person would say it."""
        return f"max_num_seqs {self.max_num_seqs}"


@dataclass(frozen=True)
class StreamDemand:
    """The requests of a goal, drawn once, so that all configurations get the same ones.

    Attributes:
        gaps: float64 `[n]`, times between requests at a rate of 1 per second.
        prompts: int64 `[n]`, tokens of each prompt.
        answers: int64 `[n]`, tokens of each answer.
    """

    gaps: NDArray[np.float64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]

    @classmethod
    def of(cls, goal: SloSpec, requests: int = REQUESTS, seed: int = SEED) -> "StreamDemand":
        """Return requests of independent clients, with lengths as the goal says."""
        drawn = np.random.default_rng(seed)
        gaps = drawn.exponential(1.0, requests)
        lengths = (goal.prompt_tokens, goal.answer_tokens)
        return cls(gaps, *(draw_sizes(each, requests, drawn) for each in lengths))

    def at(self, rate: float) -> StreamArrivals:
        """Return the requests at a rate."""
        return StreamArrivals(np.cumsum(self.gaps) / rate, self.prompts, self.answers)


@dataclass(frozen=True)
class StreamPrediction:
    """What the event model expects of a configuration at a rate.

    Attributes:
        rate: requests per second.
        ms: p99 in milliseconds, by bound: `ttft_p99_ms` and `tpot_p99_ms`.
        utilisation: share of the time in which the engine works.
        is_overload: whether the rate is more than the engine can do.
    """

    rate: float
    ms: Mapping[str, float]
    utilisation: float
    is_overload: bool

    def is_within(self, bounds: Mapping[str, float]) -> bool:
        """Return whether it keeps the bounds."""
        return not self.is_overload and all(self.ms[key] <= most for key, most in bounds.items())


def predict_streams(
    configuration: StreamConfiguration,
    steps: StepTimes,
    demand: StreamDemand,
    serving: ServingSpec,
    rate: float,
) -> StreamPrediction:
    """Return what a configuration would do at a rate."""
    level, arrivals = steps.level(rate), demand.at(rate)

    def simulated(slower: float) -> StreamOutcome:
        return simulate_streams(
            *(arrivals, steps.times(slower), np.random.default_rng(SEED)),
            max_num_seqs=configuration.max_num_seqs,
            max_queue_size=serving.generation.max_queue_size,
        )

    outcome = simulated(level.tpot.slower)
    tpot = np.nan_to_num(level.tpot.real(outcome.tpot), posinf=np.inf)
    tpot = np.where(np.isfinite(outcome.ttft), tpot, np.inf)
    ttft = level.ttft.real(simulated(level.ttft.slower).ttft)
    values = {"ttft_p99_ms": ttft, "tpot_p99_ms": tpot}
    return StreamPrediction(
        rate=rate,
        ms={k: float(np.quantile(v, 0.99, method="higher")) * 1e3 for k, v in values.items()},
        utilisation=outcome.utilisation,
        is_overload=outcome.is_overload,
    )


def rank_streams(steps: StepTimes, goal: SloSpec, serving: ServingSpec) -> list[Considered]:
    """Return all configurations with what the event model expects of them, best first."""
    demand, bounds = StreamDemand.of(goal), bounds_of(goal)
    tokens = mean_of(goal.answer_tokens)

    def expected(each: StreamConfiguration) -> Considered:
        predicted = partial(predict_streams, each, steps, demand, serving)
        counts = range(1, each.max_num_seqs + 1)
        high = HIGHEST * max(count / steps.step(count, 0) for count in counts) / tokens
        most = highest_rate(predicted, lambda found: found.is_within(bounds), high)
        return Considered(each, predicted(goal.rate).ms, 0.0 if most is None else most.rate)

    sequences = sorted({*SEQUENCES, serving.generation.max_num_seqs})
    return by_capacity(map(expected, map(StreamConfiguration, sequences)), bounds)
