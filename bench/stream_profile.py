"""SP4 and SP5: the serving profile of a streaming model beside the real Triton and brute force.

The grid of brute force is fixed here: every number of answers under way that a profile considers.
"""

import statistics
import tempfile
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from itertools import product
from pathlib import Path

import numpy as np

from bench.event_model import Beside
from bench.language_model import SMALL, write_model
from bench.measure import Row, measure_in_turn, measure_rows, off
from bench.profiled_digits import NothingKept
from millrace.models.common.digest import digest_of_all
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.profiler import Found, Profiler, measure_capacity
from millrace.serving.profile.stream_measure import measure_steps
from millrace.serving.profile.stream_search import (
    SEQUENCES,
    StreamConfiguration,
    StreamDemand,
    predict_streams,
)
from millrace.serving.profile.stream_twin import StepTimes
from millrace.serving.profile.stream_workload import StreamTarget, StreamWorkload
from millrace.serving.profile.workload import Configuration, Values
from millrace.serving.triton.version_folder import Artifact

GOAL = SloSpec(
    rate=0.5, ttft_p99_ms=1500, tpot_p99_ms=100, prompt_tokens={32: 1, 96: 1}, answer_tokens=32
)
LOADS = (0.1, 0.3, 0.5, 0.65, 0.8)
LOAD_SECONDS, FEWEST, REPEATS = 15.0, 60, 3
WAITING = 120
"""Requests that are sent at once, to see how many the engine answers per second."""
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


def beside_triton(streaming: Streaming) -> Row:
    """SP4: TTFT and TPOT that the event model expects, against the same real streams, up to 80%."""
    configuration = streaming.workload.current
    sent = dict[tuple[float, int], Values]()
    with streaming.workload.running() as target:
        before = steps_of(target)
        target.serve(configuration)
        most = saturated_rate(target)
        many = {share: max(FEWEST, int(share * most * LOAD_SECONDS)) for share in LOADS}
        for share, seed in product(LOADS, range(REPEATS)):
            sent[share, seed] = target.send(share * most, many[share], seed).values
        after = steps_of(target)
    serving = streaming.workload.artifact.serving
    found: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for (share, seed), values in sent.items():
        demand = StreamDemand.of(GOAL, many[share], seed)
        one, other = (
            predict_streams(configuration, steps, demand, serving, share * most).ms
            for steps in (before, after)
        )
        for key, seconds in values.items():
            real = float(np.quantile(seconds, 0.99, method="higher")) * 1e3
            pairs = found.setdefault(key, {}).setdefault(share, [])
            pairs.append(((one[key] + other[key]) / 2, real))
    beside = {
        (key, share): Beside(*zip(*pairs, strict=True))
        for key, by_share in found.items()
        for share, pairs in by_share.items()
    }
    return Row(
        name="SP4",
        what="p99 of TTFT and TPOT, event model ÷ Triton, the worst of "
        f"{len(LOADS)} loads to 80% of what it does while {WAITING} requests wait",
        value=max((each.ratio for each in beside.values()), key=off),
        goal="0.8 to 1.2, or within three repeats, at each load",
        holds=all(each.is_close(WITHIN) for each in beside.values()),
        samples={
            f"{key.split('_')[0]} {share:.0%}": [each.ratio, *each.expected, *each.real]
            for (key, share), each in beside.items()
        },
    )


def steps_of(target: StreamTarget) -> StepTimes:
    """Measure the engine's steps, with as many answers under way as a profile considers."""
    target.serve(StreamConfiguration(max(SEQUENCES)))
    return measure_steps(target, GOAL)


def saturated_rate(target: StreamTarget) -> float:
    """Return how many requests the engine answers per second while many wait."""
    demand = StreamDemand.of(GOAL, WAITING, REPEATS)
    load = target.send_at_once(demand.prompts.tolist(), demand.answers.tolist())
    return WAITING / float(load.last.max())


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
