"""The configurations that a profile chooses among, and what the event model expects of each."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals, Batcher, simulate

BATCH_SIZES = (1, 4, 8, 16, 32, 64)
DELAYS = (0, 500, 2000, 5000)
"""Queue delays in microseconds."""
REQUESTS = 2000
"""Requests of a simulation; the p99 is the 20th largest latency."""
TOLERANCE = 0.02
"""Relative width at which the search for a rate ends."""
HIGHEST = 2.0
"""Where the search for a rate begins, as a share of what full batches on an idle machine take: a
busy machine may be faster, as its clock and its caches are."""
FIRST_SHARES = (0.001, 0.01, 0.05, 0.2, 0.5)
"""The shares of that rate of which one has to keep the bound."""
SEED = 24


@dataclass(frozen=True, order=True)
class Setup:
    """What decides how long a batch takes.

    Attributes:
        instances: instances of the model.
        threads: threads of each.
    """

    instances: int
    threads: int

    def __str__(self) -> str:
        """Return both in words."""
        pairs = ((self.instances, "instance"), (self.threads, "thread"))
        return ", ".join(f"{many} {name}{'' if many == 1 else 's'}" for many, name in pairs)


@dataclass(frozen=True, order=True)
class BatchConfiguration:
    """One configuration of a model that answers at once; the names are Triton's.

    Attributes:
        setup: instances and threads.
        batch_size: rows of a batch that is computed at once when so many wait.
        delay: `max_queue_delay_microseconds`.
        largest_request: rows that a request may have, whatever the size of batches.
    """

    setup: Setup
    batch_size: int
    delay: int = 0
    largest_request: int = 1

    @property
    def max_batch_size(self) -> int:
        """Most rows of a batch; a single request may have as many."""
        return max(self.batch_size, self.largest_request)

    @property
    def settings(self) -> dict[str, int]:
        """The keys of the pipeline file's `serving`, with their values."""
        return {
            "max_batch_size": self.max_batch_size,
            "preferred_batch_size": self.batch_size,
            "max_queue_delay_microseconds": self.delay,
            "instance_count": self.setup.instances,
            "intra_op_thread_count": self.setup.threads,
        }

    @property
    def cells(self) -> dict[str, str]:
        """What a table shows of the configuration, by title of the column."""
        return {
            "instances × threads": f"{self.setup.instances} × {self.setup.threads}",
            "batch": str(self.batch_size),
            "delay µs": str(self.delay),
        }

    @property
    def group(self) -> Setup:
        """Instances and threads, in which configurations differ most."""
        return self.setup

    @property
    def batcher(self) -> Batcher:
        """The configuration as the event model has it."""
        preferred = (self.batch_size,) if self.batch_size < self.max_batch_size else ()
        delay = self.delay / 1e6
        return Batcher(self.max_batch_size, self.setup.instances, delay, preferred)

    def __str__(self) -> str:
        """Return the configuration as a person would say it."""
        parts = [str(self.setup), f"batches of {self.batch_size}"]
        return ", ".join([*parts, f"delay {self.delay} µs"] if self.delay else parts)


def setups(cores: int) -> list[Setup]:
    """Return the numbers of instances and threads that together use at most all cores.

    More threads than cores take turns, which makes single requests slower and none faster.
    """
    counts = sorted({2**power for power in range(cores.bit_length())} | {cores})
    return [
        Setup(instances, threads)
        for instances, threads in product(counts, counts)
        if instances * threads <= cores
    ]


def configurations(
    setups: Iterable[Setup],
    rows: int = 1,
    batches: bool = True,
    largest_request: int = 1,
) -> list[BatchConfiguration]:
    """Return every configuration that is considered.

    Args:
        setups: instances and threads.
        rows: most rows of the goal's requests, which a batch must hold.
        batches: whether Triton may batch requests of the model.
        largest_request: rows that a request may have, as the pipeline file says.
    """
    if not batches:
        return [BatchConfiguration(setup, rows) for setup in setups]
    sizes = sorted({max(size, rows) for size in BATCH_SIZES})
    return [
        BatchConfiguration(setup, size, delay, largest_request)
        for setup, size, delay in product(setups, sizes, DELAYS)
        if size > 1 or delay == 0
    ]


@dataclass(frozen=True)
class Prediction:
    """What the event model expects of a configuration at a rate.

    Attributes:
        rate: requests per second.
        p50_ms: median latency in milliseconds.
        p99_ms: 99th percentile.
        queue_p99_ms: 99th percentile of the time in the queue.
        utilisation: share of the time in which the instances compute.
        rows: mean rows of a batch.
        is_overload: whether the rate is more than the instances can do.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    queue_p99_ms: float
    utilisation: float
    rows: float
    is_overload: bool


@dataclass(frozen=True)
class Demand:
    """The requests of a goal, as drawn once, so that all configurations get the same ones.

    Attributes:
        gaps: float64 `[n]`, times between requests at a rate of 1 per second.
        rows: int64 `[n]`.
        bound_ms: largest p99 latency.
    """

    gaps: NDArray[np.float64]
    rows: NDArray[np.int64]
    bound_ms: float

    @classmethod
    def of(cls, goal: SloSpec, requests: int = REQUESTS, seed: int = SEED) -> "Demand":
        """Return requests of independent clients, with rows as the goal says.

        Args:
            goal: the goal, which has `p99_ms`.
            requests: how many.
            seed: of the random numbers.
        """
        drawn = np.random.default_rng(seed)
        gaps = drawn.exponential(1.0, requests)
        return cls(gaps, draw_sizes(goal.rows, requests, drawn), goal.p99_ms or np.inf)

    def at(self, rate: float) -> Arrivals:
        """Return the requests at a rate."""
        return Arrivals(np.cumsum(self.gaps) / rate, self.rows)


def draw_sizes(
    sizes: Mapping[int, float], many: int, drawn: np.random.Generator
) -> NDArray[np.int64]:
    """Return sizes drawn from a distribution, int64 `[many]`."""
    values, often = np.array(list(sizes), np.int64), np.array(list(sizes.values()))
    return drawn.choice(values, size=many, p=often / often.sum())


def predict(
    configuration: BatchConfiguration, times: ServiceTimes, demand: Demand, rate: float
) -> Prediction:
    """Return what a configuration would do at a rate."""
    many = len(demand.rows)
    blocks = times.blocks(rate, many, np.random.default_rng(SEED))
    outcome = simulate(demand.at(rate), configuration.batcher, times.service(blocks))
    latency = outcome.latency + blocks.overhead(outcome.latency)
    p50, p99 = np.percentile(latency, (50, 99)) * 1e3
    return Prediction(
        rate=rate,
        p50_ms=float(p50),
        p99_ms=float(p99),
        queue_p99_ms=float(np.percentile(outcome.queue, 99)) * 1e3,
        utilisation=outcome.utilisation,
        rows=float(demand.rows.sum()) / outcome.batches,
        is_overload=outcome.is_overload,
    )


def capacity(
    configuration: BatchConfiguration, times: ServiceTimes, demand: Demand
) -> Prediction | None:
    """Return the highest rate that keeps the bound, with what is expected there.

    Return None if no rate does, as a single request takes too long.
    """
    sizes = range(1, configuration.max_batch_size + 1)
    full = max(size / times.idle_seconds(size) for size in sizes)
    high = HIGHEST * full * configuration.setup.instances / float(demand.rows.mean())
    predicted = partial(predict, configuration, times, demand)
    return highest_rate(predicted, lambda found: _is_within(found, demand), high)


class AtRate(Protocol):
    """What is expected at a rate."""

    @property
    def rate(self) -> float:
        """Requests per second."""
        ...


P = TypeVar("P", bound=AtRate)


def highest_rate(
    predicted: Callable[[float], P], is_within: Callable[[P], bool], high: float
) -> P | None:
    """Return what is expected at the highest rate within the bounds; None if no rate is.

    Args:
        predicted: returns what is expected at a rate.
        is_within: whether that is within the bounds.
        high: a rate that is not.
    """
    # At the lowest rates a queue delay may cost more than the bound allows.
    begun = (predicted(share * high) for share in FIRST_SHARES)
    best = next((each for each in begun if is_within(each)), None)
    if best is None:
        return None
    low = best.rate
    while high - low > TOLERANCE * high:
        middle = np.sqrt(low * high) if high > 4 * low else (low + high) / 2
        found = predicted(float(middle))
        if is_within(found):
            low, best = float(middle), found
        else:
            high = float(middle)
    return best


def _is_within(found: Prediction, demand: Demand) -> bool:
    return found.p99_ms <= demand.bound_ms and not found.is_overload
