"""SP1 to SP3, SP6: a profile of the digits beside brute force, Triton, the defaults; its proofs.

The grid of brute force is fixed here: every number of instances and threads, batch size and queue
delay below, each measured as the profile measures those that it puts first.
"""

import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from bench.home import own_home
from bench.measure import Row, measure_in_turn, measure_rows
from millrace.models.common.arrays import Array
from millrace.models.common.installation import Installation
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.batch_workload import BatchTarget, BatchWorkload, configured
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.profiler import (
    Decided,
    Found,
    Profiler,
    measure_capacity,
    plan_proof,
    prove,
)
from millrace.serving.profile.search import (
    BatchConfiguration,
    Demand,
    Setup,
    predict,
    setups,
)
from millrace.serving.profile.workload import Configuration, Effort
from millrace.serving.triton.version_folder import Artifact

PIPELINE = Path("examples/digits.yaml")
GOAL = SloSpec(rate=200, p99_ms=20)
CORES = 2
SIZES, DELAYS = (1, 4, 16, 32, 64), (0, 500, 2000, 5000)
ROUNDS, SEARCHES, ENOUGH = 3, 10, 9
"""Repeats of a comparison, and how many of so many searches must be as good as brute force."""
LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)
LOAD_SECONDS, REPEATS = 4.0, 3
PROOFS, PROOF_SECONDS = 20, 60.0
TOO_SLOW, FAST = 0.8, 3.0
"""Bounds of SP6 as shares of the p99 that the version has."""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows on one version of the digits."""
    with own_home() as installation:
        subprocess.run(
            [str(Path(sys.executable).with_name("millrace")), "run", str(PIPELINE)],
            check=True,
            capture_output=True,
        )
        digits = Digits(installation)
        measures = {
            "SP1": partial(beside_brute_force, digits),
            "SP2": partial(beside_triton, digits),
            "SP3": partial(beside_defaults, digits),
            "SP6": partial(slow_versions, digits),
        }
        yield from measure_rows(measures, wanted)


class Digits:
    """The version of the digits, and its profile."""

    def __init__(self, installation: Installation) -> None:
        from millrace.models.registry.mlflow_registry import registry_of
        from millrace.tasks.kinds.steps import steps_of

        registry = registry_of(installation)
        package = registry.fetch(registry.version("digits", 1))
        steps = steps_of(package.version.kind)
        self.rows: dict[str, Array] = dict(steps.load_rows(package))
        self.artifact: Artifact = steps.evidence(package, installation).artifact()

    @cached_property
    def found(self) -> Found:
        """The profile, made once."""
        return Profiler(self._workload(), GOAL, lambda _: None).run()

    def search(self) -> Decided:
        """Find a configuration as a profile does, without the proof."""
        workload = self._workload()
        ranked = workload.rank()
        with workload.running() as target:
            return Profiler(workload, GOAL, lambda _: None).decide(target, ranked)

    def _workload(self) -> BatchWorkload:
        return BatchWorkload(self.artifact, self.rows, GOAL, CORES, NothingKept(), lambda _: None)

    def capacity(self, model: ProfiledModel, configuration: Configuration) -> float:
        """Return the highest rate within the bound of a configuration."""
        model.serve(configuration)
        start = self.found.chosen.measured or GOAL.rate
        return measure_capacity(BatchTarget(model, GOAL), GOAL, start, Effort())


class NothingKept:
    """Measurements that are not kept; a `Kept`."""

    def read(self, name: str, parse: object) -> None:
        """Return None."""

    def write(self, name: str, measured: object) -> None:
        """Keep nothing."""


def grid() -> list[BatchConfiguration]:
    """Return the configurations of brute force."""
    return [
        BatchConfiguration(setup, size, delay)
        for setup in setups(CORES)
        for size in SIZES
        for delay in DELAYS
        if size > 1 or delay == 0
    ]


def beside_brute_force(digits: Digits) -> Row:
    """SP1: requests/s of what ten searches choose, against the best of the whole grid."""
    with profiled_model(digits.artifact, digits.rows) as model:
        grid_of = {each: digits.capacity(model, each) for each in grid()}
    best = max(grid_of, key=lambda each: grid_of[each])
    chosen = list[float]()
    reached = list[float]()
    measured = 0
    for _ in range(SEARCHES):
        decided = digits.search()
        measured = max(measured, sum(each.measured is not None for each in decided.considered))
        with profiled_model(digits.artifact, digits.rows) as model:
            chosen.append(digits.capacity(model, decided.chosen.configuration))
            reached.append(digits.capacity(model, best))
    ratios = [one / other for one, other in zip(chosen, reached, strict=True)]
    good = sum(
        ratio >= 0.95 or one >= min(reached) for ratio, one in zip(ratios, chosen, strict=True)
    )
    return Row(
        name="SP1",
        what=f"searches of {SEARCHES} whose choice has 95% of the requests/s in 20 ms of brute "
        f"force ({best}), or as many as it had in one of its repeats; {measured} of "
        f"{len(grid_of)} configurations measured, median ratio {statistics.median(ratios):.2f}",
        value=good,
        goal=f"≥ {ENOUGH}, with 10% of the measurements",
        holds=good >= ENOUGH and measured <= 0.1 * len(grid_of),
        samples={"chosen": chosen, "brute_force": reached, "grid": list(grid_of.values())},
    )


def beside_triton(digits: Digits) -> Row:
    """SP2: the p99 that the event model expects, against real requests, at loads up to 80%.

    The model's times are measured in turn with the requests, since the machine is faster at times.
    """
    setup, size = Setup(1, 1), 16
    configuration = BatchConfiguration(setup, size)
    serving, most = digits.artifact.serving, 0.0
    predicted: list[list[float]] = [[] for _ in LOADS]
    real: list[list[float]] = [[] for _ in LOADS]
    for seed in range(REPEATS):
        times = measure_times(digits.artifact, digits.rows, serving, setup, GOAL.rows)
        with profiled_model(digits.artifact, digits.rows) as model:
            most = most or digits.capacity(model, configuration)
            model.serve(configuration)
            for place, share in enumerate(LOADS):
                rate = share * most
                many = int(np.clip(rate * LOAD_SECONDS, 300, 5000))
                found = predict(configuration, times, Demand.of(GOAL, 4000), rate)
                predicted[place].append(found.p99_ms)
                real[place].append(p99(model, rate, many, seed))
    expected = [statistics.median(each) for each in predicted]
    middle = [statistics.median(each) for each in real]
    ratios = [one / seen for one, seen in zip(expected, middle, strict=True)]
    is_close = [
        abs(ratio - 1) <= 0.15 or min(seen) <= one <= max(seen)
        for ratio, one, seen in zip(ratios, expected, real, strict=True)
    ]
    upto = [share <= 0.8 for share in LOADS]
    worst = max((r for r, counts in zip(ratios, upto, strict=True) if counts), key=off)
    return Row(
        name="SP2",
        what="p99 of the event model ÷ of Triton, the worst of 7 loads up to 80% of capacity",
        value=worst,
        goal="0.85 to 1.15, or within three repeats, at each load",
        holds=all(close for close, counts in zip(is_close, upto, strict=True) if counts),
        samples={"ratio": ratios, "real_p99_ms": middle, "p99_ms": expected},
    )


def off(ratio: float) -> float:
    """Return how far a ratio is from 1, either way."""
    return float(abs(np.log(ratio)))


def p99(model: ProfiledModel, rate: float, many: int, seed: int) -> float:
    """Return the p99 latency of real requests at a rate, in milliseconds."""
    arrivals = Demand.of(GOAL, many, seed).at(rate)
    latency = model.send(arrivals.times, arrivals.rows).latency
    return float(np.quantile(latency, 0.99, method="higher")) * 1e3


def beside_defaults(digits: Digits) -> Row:
    """SP3: requests/s within the bound, profiled against the defaults of the pipeline file."""
    chosen, current = digits.found.chosen.configuration, configured(digits.artifact.serving)
    with profiled_model(digits.artifact, digits.rows) as model:
        one, other = (partial(digits.capacity, model, each) for each in (chosen, current))
        rounds = measure_in_turn(one, other, ROUNDS)
    ratio, a, b = rounds.ratio, rounds.a, rounds.b
    return Row(
        name="SP3",
        what=f"requests/s in 20 ms: profiled ({chosen}) ÷ defaults",
        value=ratio,
        goal="≥ 1.3, and never below 1",
        holds=ratio >= 1.3,
        samples={"profiled": a, "defaults": b},
    )


def slow_versions(digits: Digits) -> Row:
    """SP6: proofs refused to a version that is too slow for its goal, of 20.

    The bound is below the p99 that the version has. With a bound far above it, it is proved.
    """
    configuration = configured(digits.artifact.serving)
    with profiled_model(digits.artifact, digits.rows) as model:
        model.serve(configuration)
        real = statistics.median(p99(model, GOAL.rate, 2000, seed) for seed in range(REPEATS))

        def proved(share: float) -> int:
            goal = GOAL.model_copy(update={"p99_ms": share * real})
            rate, schedule = plan_proof(goal.rate, 10 * goal.rate, PROOF_SECONDS)
            target = BatchTarget(model, goal)
            runs = (prove(target, goal, rate, schedule, seed)[1] for seed in range(PROOFS))
            return sum(all(each.holds for each in proofs) for proofs in runs)

        refused, accepted = PROOFS - proved(TOO_SLOW), proved(FAST)
    return Row(
        name="SP6",
        what=f"proofs refused of {PROOFS}, bound {TOO_SLOW} of the p99 of {real:.1f} ms; with "
        f"{FAST:.0f} times it {accepted} of {PROOFS} are proved",
        value=refused,
        goal=f"{PROOFS}",
        holds=refused == PROOFS,
        samples={"refused": [float(refused)], "proved": [float(accepted)], "p99_ms": [real]},
    )
