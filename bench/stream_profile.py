"""SP4 and SP5: the serving profile of a streaming model beside the real Triton and brute force.

The grid of brute force is fixed here: every number of answers under way that a profile considers.
"""

import statistics
import tempfile
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np

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
from millrace.serving.profile.stream_workload import StreamTarget, StreamWorkload
from millrace.serving.profile.workload import Configuration
from millrace.serving.triton.version_folder import Artifact

GOAL = SloSpec(
    rate=0.5, ttft_p99_ms=1500, tpot_p99_ms=100, prompt_tokens={32: 1, 96: 1}, answer_tokens=32
)
LOADS = (0.1, 0.3, 0.5, 0.65, 0.8)
LOAD_SECONDS, FEWEST, REPEATS = 12.0, 40, 3
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
    """SP4: TTFT and TPOT that the event model expects, against real streams, up to 80%."""
    configuration = streaming.workload.current
    serving = streaming.workload.artifact.serving
    ratios: dict[str, list[float]] = {"ttft_p99_ms": [], "tpot_p99_ms": []}
    with streaming.workload.running() as target:
        target.serve(StreamConfiguration(max(SEQUENCES)))
        steps = measure_steps(target, GOAL)
        most = streaming.capacity(target, configuration)
        for rate in (share * most for share in LOADS):
            many = max(FEWEST, int(rate * LOAD_SECONDS))
            demand = StreamDemand.of(GOAL, 2000)
            expected = predict_streams(configuration, steps, demand, serving, rate).ms
            sent = [target.send(rate, many, seed).values for seed in range(REPEATS)]
            for key, each in ratios.items():
                real = np.concatenate([values[key] for values in sent])
                each.append(expected[key] / float(np.quantile(real, 0.99) * 1e3))
    worst = max((ratio for each in ratios.values() for ratio in each), key=off)
    return Row(
        name="SP4",
        what=f"p99 of TTFT and TPOT, event model ÷ Triton, the worst of {len(LOADS)} loads to 80%",
        value=worst,
        goal="0.8 to 1.2",
        holds=abs(worst - 1) <= WITHIN,
        samples=ratios,
    )


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
