"""SP4 and SP5: the serving profile of a streaming model beside the real Triton and brute force.

The grid of brute force is fixed here: every number of answers under way that a profile considers.
"""

import itertools
import statistics
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.language_model import SMALL, write_model
from bench.measure import Beside, Row, measure_in_turn, measure_rows, off, queue_grows
from bench.profiled_digits import NothingKept
from millrace.models.common.digest import digest_of_all
from millrace.models.common.errors import WorkError
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.profiler import Found, Profiler, measure_capacity
from millrace.serving.profile.record import bounds_of
from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.stream_measure import measure_steps
from millrace.serving.profile.stream_search import (
    SEQUENCES,
    StreamConfiguration,
    StreamDemand,
    predict_streams,
)
from millrace.serving.profile.stream_workload import StreamTarget, StreamWorkload
from millrace.serving.profile.workload import Configuration
from millrace.serving.triton.version_folder import Artifact

GOAL = SloSpec(
    rate=0.5, ttft_p99_ms=1500, tpot_p99_ms=100, prompt_tokens={32: 1, 96: 1}, answer_tokens=32
)
LOADS = (0.1, 0.3, 0.5, 0.65, 0.8)
LOAD_SECONDS, FEWEST, REPEATS = 15.0, 200, 3
WAITING = 120
"""Requests that are sent at once, to see how many the engine answers per second."""
TRIED, LOWER = 8, 0.85
"""Rates that are tried to find one at which the queue does not grow, and their ratio."""
ROUNDS = 2
WITHIN = 0.20


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on one model of 33 million parameters."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        streaming = Streaming(Path(folder))
        measures = {
            "SP4": partial(beside_triton, streaming),
            "SP5": partial(beside_brute_force, streaming),
        }
        yield from measure_rows(measures, wanted)


class Streaming:
    """A model with random weights, and its profile."""

    def __init__(self, folder: Path) -> None:
        made = write_model(folder, SMALL)
        files = {each.name: each for each in made.int8.iterdir()}
        artifact = Artifact(files, digest_of_all(files), "language")
        texts = [made.text[:200_000]]
        self.workload = StreamWorkload(artifact, texts, GOAL, NothingKept(), lambda _: None)

    @cached_property
    def found(self) -> Found:
        """The profile, made once."""
        return Profiler(self.workload, GOAL, lambda _: None).run()

    def capacity(self, target: StreamTarget, configuration: Configuration) -> float:
        """Return the highest rate within the goal of a configuration."""
        target.serve(configuration)
        start = self.found.chosen.measured or GOAL.rate
        return measure_capacity(target, GOAL, start, self.workload.effort)


@dataclass(frozen=True)
class Repeat:
    """Real streams at a load, and what the event model expects of the same requests.

    Attributes:
        expected: p99 in milliseconds, by bound; with steps from before the load, and from after it.
        real: p99 in milliseconds, by bound.
    """

    expected: tuple[Mapping[str, float], Mapping[str, float]]
    real: Mapping[str, float]

    def pair(self, bound: str) -> tuple[float, float]:
        """Return the expected and the real milliseconds."""
        return statistics.fmean(each[bound] for each in self.expected), self.real[bound]


def beside_triton(streaming: Streaming) -> Row:
    """SP4: TTFT and TPOT that the event model expects, against the same real streams, up to 80%."""
    most, found = send_loads(streaming)
    beside = {
        (bound, share): Beside(*zip(*(each.pair(bound) for each in repeats), strict=True))
        for share, repeats in found.items()
        for bound in bounds_of(GOAL)
    }
    return Row(
        name="SP4",
        what="p99 of TTFT and TPOT, event model ÷ Triton, the worst of "
        f"{len(LOADS)} loads to {max(LOADS):.0%} of the {most:.3g} requests/s at which its queue "
        "does not grow",
        value=max((each.ratio for each in beside.values()), key=off),
        goal="0.8 to 1.2, or within three repeats, at each load",
        holds=all(each.is_close(WITHIN) for each in beside.values()),
        samples={
            f"{bound.split('_')[0]} {share:.0%}": [each.ratio, *each.expected, *each.real]
            for (bound, share), each in beside.items()
        },
    )


def send_loads(streaming: Streaming) -> tuple[float, dict[float, list[Repeat]]]:
    """Return the highest rate at which the queue does not grow, and the repeats at shares of it."""
    configuration, serving = streaming.workload.current, streaming.workload.artifact.serving
    found: dict[float, list[Repeat]] = {share: [] for share in LOADS}
    with streaming.workload.running() as target:
        before = steps_of(target)
        target.serve(configuration)
        most = lasting_rate(target)
        for seed, share in itertools.product(range(REPEATS), LOADS):
            rate, many = share * most, max(FEWEST, int(share * most * LOAD_SECONDS))
            target.serve(configuration)
            real = target.send(rate, many, seed).values
            after, demand = steps_of(target), StreamDemand.of(GOAL, many, seed)
            one, other = (
                predict_streams(configuration, steps, demand, serving, rate).ms
                for steps in (before, after)
            )
            real_ms = {key: p99_ms(seconds) for key, seconds in real.items()}
            found[share].append(Repeat((one, other), real_ms))
            before = after
    return most, found


def p99_ms(seconds: NDArray[np.float64]) -> float:
    """Return the p99 in milliseconds."""
    return float(np.quantile(seconds, 0.99, method="higher")) * 1e3


def steps_of(target: StreamTarget) -> StepTimes:
    """Measure the engine's steps, with as many answers under way as a profile considers."""
    target.serve(StreamConfiguration(max(SEQUENCES)))
    return measure_steps(target, GOAL)


def lasting_rate(target: StreamTarget) -> float:
    """Return the highest rate of independent clients at which the queue does not grow.

    It begins with what the engine answers per second while many wait, and goes down from there.
    """
    demand = StreamDemand.of(GOAL, WAITING, REPEATS)
    load = target.send_at_once(demand.prompts.tolist(), demand.answers.tolist())
    rate = WAITING / float(load.last.max())
    for seed in range(TRIED):
        sent = target.send(rate, int(rate * LOAD_SECONDS), seed)
        if not queue_grows(sent.values["ttft_p99_ms"].tolist()):
            return rate
        rate *= LOWER
    raise WorkError("no rate was found at which the queue does not grow", seen=f"{rate:.3g}")


def beside_brute_force(streaming: Streaming) -> Row:
    """SP5: requests/s of the profile's choice, against the best of all numbers of answers."""
    chosen = streaming.found.chosen.configuration
    with streaming.workload.running() as target:
        grid = {n: streaming.capacity(target, StreamConfiguration(n)) for n in SEQUENCES}
        best = max(grid, key=lambda each: grid[each])
        one = partial(streaming.capacity, target, chosen)
        other = partial(streaming.capacity, target, StreamConfiguration(best))
        rounds = measure_in_turn(one, other, ROUNDS)
    a, b = rounds.a, rounds.b
    return Row(
        name="SP5",
        what=f"requests/s within the goal: profile ({chosen}) ÷ brute force (max_num_seqs {best})",
        value=rounds.ratio,
        goal="≥ 0.95, or within the repeats of brute force",
        holds=rounds.ratio >= 0.95 or statistics.median(a) >= min(b),
        samples={"profile": a, "brute_force": b, "grid": list(grid.values())},
    )
