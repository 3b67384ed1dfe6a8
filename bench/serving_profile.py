"""SP1 to SP3, SP6: a profile of the digits beside brute force, Triton, the defaults; its proofs.

SP2 and its like are in event_model.py, and the version in profiled_digits.py.

The grid of brute force is fixed here: every number of instances and threads, batch size and queue
delay below, each measured as the profile measures those that it puts first.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from bench.event_model import beside_triton, row_of_medians, row_of_overload, row_of_p99
from bench.home import own_home
from bench.measure import Row, measure_in_turn, measure_rows
from bench.profiled_digits import CORES, GOAL, Digits
from millrace.models.common.errors import MillraceError
from millrace.serving.profile.batch_workload import BatchTarget, configured
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.profiler import Decided, plan_proof, prove
from millrace.serving.profile.search import BatchConfiguration, Demand, setups

PIPELINE = Path("examples/digits.yaml")
SIZES, DELAYS = (1, 4, 16, 32, 64), (0, 500, 2000, 5000)
ROUNDS, SEARCHES, ENOUGH = 3, 10, 9
"""Repeats of a comparison, and how many of so many searches must be as good as brute force."""
REPEATS = 3
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
        beside = cache(partial(beside_triton, digits))
        measures: dict[str, Callable[[], Row]] = {
            "SP1": partial(beside_brute_force, digits),
            "SP2": lambda: row_of_p99(beside()),
            "SP2M": lambda: row_of_medians(beside()),
            "SP2O": lambda: row_of_overload(beside()),
            "SP3": partial(beside_defaults, digits),
            "SP6": partial(slow_versions, digits),
        }
        yield from measure_rows(measures, wanted)


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
    """SP1: requests/s of what ten searches choose, against the best of the whole grid.

    A search that fails has chosen nothing, and counts as 0 requests/s.
    """
    with profiled_model(digits.artifact, digits.rows) as model:
        grid_of = {each: digits.capacity(model, each) for each in grid()}
    best = max(grid_of, key=lambda each: grid_of[each])
    say(f"of {len(grid_of)} configurations the best is {best}: {grid_of[best]:.0f} requests/s")
    chosen = list[float]()
    reached = list[float]()
    measured = 0
    for number in range(SEARCHES):
        decided = search(digits)
        with profiled_model(digits.artifact, digits.rows) as model:
            chosen.append(digits.capacity(model, decided.chosen.configuration) if decided else 0.0)
            reached.append(digits.capacity(model, best))
        looked = decided.considered if decided else ()
        measured = max(measured, sum(each.measured is not None for each in looked))
        say(f"search {number + 1} of {SEARCHES}: {chosen[-1]:.0f}, best {reached[-1]:.0f}")
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


def search(digits: Digits) -> Decided | None:
    """Return what a search decides; None if it fails."""
    try:
        return digits.search()
    except MillraceError as error:
        say(f"a search failed: {error}")
        return None


def say(text: str) -> None:
    """Print how far a long measurement is."""
    sys.stderr.write(f"    {text}\n")


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


def p99(model: ProfiledModel, rate: float, many: int, seed: int) -> float:
    """Return the p99 latency of real requests at a rate, in milliseconds."""
    arrivals = Demand.of(GOAL, many, seed).at(rate)
    latency = model.send(arrivals.times, arrivals.rows).latency
    return float(np.quantile(latency, 0.99, method="higher")) * 1e3
