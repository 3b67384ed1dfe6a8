"""PC1, PC2: what a promotion card expects, against what the promoted version then does.

Ten versions, which differ in how much they compute and in their batches, get recorded requests at
several loads. PC1 compares p99 of the busiest minute, and PC2 whether the goal was missed in a
burst. What is real is what the guard recorded. The batches of a network are measured right before
its requests, since minutes later the machine may have another speed. All networks take turns, in
several rounds, so that some slow minutes are one round of each and not all rounds of one.

The layers of a network share their weights of 1 MB: with 37 MB, p99 of requests at one rate was
between 12 and 23 ms within two minutes. A part of a load in which the machine paused does not count
for PC1, as it does not where batches are measured.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from bench.measure import Beside, Row, measure_rows, off
from bench.server import batch_of, mlp
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.guard.arrivals_table import RecordedArrivals
from millrace.serving.profile.expectation import expect, prepare
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.pauses import is_usual
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.replay import judge
from millrace.serving.profile.search import BatchConfiguration, Demand, Setup, capacity
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals, poisson
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.version_folder import Artifact

WIDTH, HIDDEN, LAYERS, BATCHES = 64, 512, (1, 8, 16, 32, 64), (1, 16)
LOAD, WITHIN_MS = 0.5, 50.0
"""The load of PC1, as a share of the highest rate with this p99."""
BURSTS = (0.3, 2.5)
"""The loads of PC2 in turn, as shares of what full batches would take."""
LOAD_SECONDS, BURST_SECONDS, FEWEST, MOST = 8.0, 5.0, 1000, 60_000
ROUNDS = 7
"""How often a version gets each load; the median counts."""
BOUND_MS, BURST_MS = 1e6, 300.0
"""Bounds: one that nothing misses, and one that a burst beyond the capacity misses."""
CORES = 2


@dataclass(frozen=True)
class BenchVersion:
    """A version, and its configuration."""

    artifact: Artifact
    configuration: BatchConfiguration

    def steady_rate(self, times: ServiceTimes) -> float:
        """Return the requests per second of PC1."""
        demand = Demand.of(SloSpec(rate=1, p99_ms=WITHIN_MS))
        found = capacity(self.configuration, times, demand)
        if found is None:
            raise WorkError("a version does not keep the p99 at any rate", seen=f"{WITHIN_MS} ms")
        return LOAD * found.rate

    def most(self, times: ServiceTimes) -> float:
        """Return the requests per second of the best batches, as at the highest measured rate."""
        level = times.levels[-1]
        return max(
            size / (times.idle_seconds(size) * level.usual_factor(size, 1, waited=True))
            for size in {1, self.configuration.max_batch_size}
        )

    def measure(self) -> ServiceTimes:
        """Measure how long its batches take."""
        rows, setup = batch_of(WIDTH, 64), self.configuration.setup
        return measure_times(self.artifact, rows, ServingSpec(), setup, {1: 1.0})


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on the same ten versions, one after the other."""

    @cache
    def measured() -> list["Compared"]:
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            with ExitStack() as stack:
                networks = [
                    stack.enter_context(running(versions, number))
                    for number, versions in enumerate(make_networks(Path(folder)))
                ]
                for seed in range(ROUNDS):
                    for network in networks:
                        network.compare(seed)
            return [each.compared for network in networks for each in network.versions]

    measures: dict[str, Callable[[], Row]] = {
        "PC1": lambda: row_of_cards(measured()),
        "PC2": lambda: row_of_replays(measured()),
    }
    yield from measure_rows(measures, wanted)


def make_networks(folder: Path) -> Iterator[list[BenchVersion]]:
    """Make networks of several depths, and of each a version for each size of batches."""
    for layers in LAYERS:
        widths = (WIDTH, *[HIDDEN] * (layers + 1), 10)
        file = mlp(folder / f"{layers}.onnx", widths, shares_weights=True)
        artifact, setup = artifact_of_graph(file, digest_of(file)), Setup(1, 1)
        yield [BenchVersion(artifact, BatchConfiguration(setup, size)) for size in BATCHES]


def send(
    model: ProfiledModel, served: BatchConfiguration, rate: float, seconds: float, seed: int
) -> RecordedArrivals:
    """Send requests of independent clients to a model, and return what its guard recorded."""
    many = int(np.clip(rate * seconds, FEWEST, MOST))
    arrivals = poisson(rate, many, 1, np.random.default_rng(seed))
    model.serve(served)
    _start_of_minute(many / rate)
    before = len(model.at_guard(sum(len(rows) for _, rows in model.sent)).times)
    model.send(arrivals.times, arrivals.rows)
    found = model.at_guard(before + many)
    return found.chosen(np.arange(before, len(found.times)))


def _start_of_minute(seconds: float) -> None:
    """Wait for the next minute if this one has not so many seconds left: minutes are judged."""
    left = 60 - time.time() % 60
    if left < seconds + 1:
        time.sleep(left)


@dataclass(frozen=True)
class Replay:
    """Minutes in which a burst missed the goal, in the event model and really."""

    expected: int
    real: int


@dataclass(frozen=True)
class Compared:
    """What a card expects of a version, and what was real.

    Attributes:
        cards: p99 of steady requests in milliseconds, of each round.
        burst: what became of a burst.
    """

    cards: Beside
    burst: Replay


@dataclass
class RunningVersion:
    """A version, and what was found of it.

    Attributes:
        version: the version.
        rate: requests per second of PC1.
        burst: what became of a burst.
        cards: what a card expects of p99 and what was real, in milliseconds, of each round.
    """

    version: BenchVersion
    rate: float
    burst: Replay
    cards: list[tuple[float, float]] = field(default_factory=list)

    @property
    def compared(self) -> Compared:
        """All that was found."""
        return Compared(Beside(*zip(*self.cards, strict=True)), self.burst)


@dataclass
class RunningNetwork:
    """Versions that compute the same, with other sizes of batches, on one Triton.

    Attributes:
        model: the network on it.
        versions: the versions.
    """

    model: ProfiledModel
    versions: list[RunningVersion]

    def compare(self, seed: int) -> None:
        """Measure batches, send steady requests, and expect what comes of them."""
        times = self.versions[0].version.measure()
        for each in self.versions:
            configuration = each.version.configuration
            recorded = send(self.model, configuration, each.rate, LOAD_SECONDS, seed)
            found = prepare(recorded, 4 * WIDTH)
            expected = expect(found, configuration, times, BOUND_MS, CORES).p99_ms
            usual = prepare(recorded.chosen(is_usual(recorded.seconds)), 4 * WIDTH)
            each.cards.append((expected, usual.measured_p99_ms or np.nan))


@contextmanager
def running(versions: Sequence[BenchVersion], number: int) -> Iterator[RunningNetwork]:
    """Serve a network, and send a burst to each of its versions.

    Args:
        versions: versions that compute the same, with other sizes of batches.
        number: number of the network.
    """
    times = versions[0].measure()
    share = BURSTS[number % len(BURSTS)]
    with profiled_model(versions[0].artifact, batch_of(WIDTH, 64)) as model:
        yield RunningNetwork(
            model,
            [
                RunningVersion(
                    each,
                    each.steady_rate(times),
                    replay_burst(model, each, times, share * each.most(times), number),
                )
                for each in versions
            ],
        )


def replay_burst(
    model: ProfiledModel, version: BenchVersion, times: ServiceTimes, rate: float, seed: int
) -> Replay:
    """Send a burst to a version, and replay what was recorded of it."""
    found = send(model, version.configuration, rate, BURST_SECONDS, seed)
    real = judge(Arrivals(found.times, found.rows), found.seconds, BURST_MS)
    prepared = prepare(found, 4 * WIDTH)
    expected = expect(prepared, version.configuration, times, BURST_MS, CORES)
    return Replay(expected.missed_minutes, sum(each.is_missed for each in real))


def row_of_cards(compared: Sequence[Compared]) -> Row:
    """PC1: p99 that the card expects ÷ p99 of the same requests at the guard."""
    ratios = [each.cards.ratio for each in compared]
    close = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
    return Row(
        name="PC1",
        what=f"p99 that the promotion card expects ÷ measured, the worst of {len(ratios)} versions "
        f"({close} within 15%, median {statistics.median(ratios):.2f})",
        value=max(ratios, key=off),
        goal="0.85 to 1.15 for each",
        holds=close == len(ratios),
        samples={
            "ratio": ratios,
            **{
                f"version {number}: expected, real": [*each.cards.expected, *each.cards.real]
                for number, each in enumerate(compared)
            },
        },
    )


def row_of_replays(compared: Sequence[Compared]) -> Row:
    """PC2: how many of ten bursts, four of them beyond the capacity, have the real verdict."""
    replays = [each.burst for each in compared]
    alike = [float(each.expected == each.real) for each in replays]
    return Row(
        name="PC2",
        what=f"bursts with the same verdict in the event model as really, of {len(alike)}; "
        f"{sum(each.real > 0 for each in replays)} of them really missed the goal",
        value=sum(alike),
        goal=f"{len(alike)}",
        holds=sum(alike) == len(alike),
        samples={"alike": alike, "missed_minutes": [float(each.real) for each in replays]},
    )
