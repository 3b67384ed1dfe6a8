"""PC1, PC2: what a promotion card expects, against what the promoted version then does.

Ten versions, which differ in how much they compute and in their batches, get recorded requests at
several loads. PC1 compares p99 of the busiest minute, and PC2 whether the goal was missed in a
burst. What is real is what the guard recorded. The batches of a version are measured just before
its requests: minutes later the machine may have another speed.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from bench.measure import Row, measure_rows, off
from bench.server import batch_of, mlp
from millrace.models.common.digest import digest_of
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.guard.arrivals_table import RecordedArrivals, read_arrivals
from millrace.serving.profile.expectation import expect, prepare
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import MODEL, ProfiledModel, profiled_model
from millrace.serving.profile.replay import judge
from millrace.serving.profile.search import BatchConfiguration, Setup
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals, poisson
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.version_folder import Artifact

WIDTH, HIDDEN, BATCHES = 64, (512, 1024, 2048, 3072, 4096), (1, 16)
LOAD, BURSTS = 0.5, (0.3, 2.5)
"""The load of PC1, and those of PC2 in turn, as shares of the capacity."""
LOAD_SECONDS, BURST_SECONDS, FEWEST, MOST = 40.0, 5.0, 1000, 60_000
"""A load is nearly a minute, as the card has it; a pause of the machine is less than 1% of that."""
BOUND_MS, BURST_MS = 1e6, 300.0
"""Bounds: one that nothing misses, and one that a burst beyond the capacity misses."""
CORES = 2


@dataclass(frozen=True)
class BenchVersion:
    """A version, its configuration, and the measured times of its batches."""

    artifact: Artifact
    configuration: BatchConfiguration
    times: ServiceTimes

    @property
    def capacity(self) -> float:
        """Requests per second of the best batches, as they were at the highest measured rate."""
        level = self.times.levels[-1]
        return max(
            size / (self.times.idle_seconds(size) * level.usual_factor(size, 1))
            for size in {1, self.configuration.max_batch_size}
        )


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on the same ten versions, one after the other."""

    @cache
    def measured() -> tuple[list[PromotedCard], list[Replay]]:
        cards, replays = list[PromotedCard](), list[Replay]()
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            for number, version in enumerate(make_versions(Path(folder))):
                if "PC1" in wanted:
                    cards.append(promoted_card(version, number))
                if "PC2" in wanted:
                    replays.append(replay_burst(version, number))
        return cards, replays

    measures: dict[str, Callable[[], Row]] = {
        "PC1": lambda: row_of_cards(measured()[0]),
        "PC2": lambda: row_of_replays(measured()[1]),
    }
    yield from measure_rows(measures, wanted)


def make_versions(folder: Path) -> Iterator[BenchVersion]:
    """Make networks of several sizes, and measure the batches of each just before it is used."""
    for hidden in HIDDEN:
        file = mlp(folder / f"{hidden}.onnx", (WIDTH, hidden, hidden, 10))
        artifact, setup = artifact_of_graph(file, digest_of(file)), Setup(1, 1)
        for size in BATCHES:
            times = measure_times(artifact, batch_of(WIDTH, 64), ServingSpec(), setup, {1: 1.0})
            yield BenchVersion(artifact, BatchConfiguration(setup, size), times)


def send(version: BenchVersion, share: float, seconds: float, seed: int) -> RecordedArrivals:
    """Send requests of independent clients to a version, and return what its guard recorded."""
    rate = share * version.capacity
    many = int(np.clip(rate * seconds, FEWEST, MOST))
    arrivals = poisson(rate, many, 1, np.random.default_rng(seed))
    with profiled_model(version.artifact, batch_of(WIDTH, 64)) as model:
        model.serve(version.configuration)
        _start_of_minute(many / rate)
        begin = time.time()
        model.send(arrivals.times, arrivals.rows)
        return _recorded(model, begin, many)


def _recorded(model: ProfiledModel, begin: float, many: int) -> RecordedArrivals:
    home = Installation(model.triton.repository.staging.parent, "", "")
    for _ in range(100):
        found = read_arrivals(home, (MODEL,), begin, time.time())
        if len(found.times) >= many:
            break
        time.sleep(0.1)
    return found


def _start_of_minute(seconds: float) -> None:
    """Wait for the next minute if this one has not so many seconds left: minutes are judged."""
    left = 60 - time.time() % 60
    if left < seconds + 1:
        time.sleep(left)


@dataclass(frozen=True)
class PromotedCard:
    """The p99 that a card expects, and the real one; milliseconds."""

    expected: float
    real: float

    @property
    def ratio(self) -> float:
        """Expected ÷ real."""
        return self.expected / self.real


def promoted_card(version: BenchVersion, number: int) -> PromotedCard:
    """Send steady requests to a version, and expect their p99 from what was recorded of them."""
    found = prepare(send(version, LOAD, LOAD_SECONDS, number), 4 * WIDTH)
    expected = expect(found, version.configuration, version.times, BOUND_MS, CORES)
    return PromotedCard(expected.p99_ms, found.measured_p99_ms or np.nan)


def row_of_cards(cards: Sequence[PromotedCard]) -> Row:
    """PC1: p99 that the card expects ÷ p99 of the same requests at the guard."""
    ratios = [each.ratio for each in cards]
    worst = max(ratios, key=off)
    close = sum(abs(ratio - 1) <= 0.15 for ratio in ratios)
    return Row(
        name="PC1",
        what=f"p99 that the promotion card expects ÷ measured, the worst of {len(ratios)} versions "
        f"({close} within 15%, median {statistics.median(ratios):.2f})",
        value=worst,
        goal="0.85 to 1.15 for each",
        holds=close == len(ratios),
        samples={"ratio": ratios, "real_p99_ms": [each.real for each in cards]},
    )


@dataclass(frozen=True)
class Replay:
    """Minutes in which a burst missed the goal, in the event model and really."""

    expected: int
    real: int


def replay_burst(version: BenchVersion, number: int) -> Replay:
    """Send a burst to a version, and replay what was recorded of it."""
    share = BURSTS[number // len(BATCHES) % len(BURSTS)]
    found = send(version, share, BURST_SECONDS, number)
    real = judge(Arrivals(found.times, found.rows), found.seconds, BURST_MS)
    prepared = prepare(found, 4 * WIDTH)
    expected = expect(prepared, version.configuration, version.times, BURST_MS, CORES)
    return Replay(expected.missed_minutes, sum(each.is_missed for each in real))


def row_of_replays(replays: Sequence[Replay]) -> Row:
    """PC2: how many of ten bursts, four of them beyond the capacity, have the real verdict."""
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
