"""J1 and J2: how often the judge promotes wrong candidates, and right ones.

Rollouts are simulated from the first step to the end. `millrace.serving.rollout.rollout.move`
decides ten times in a step, the last time at its end. A candidate at the limit is the hardest case:
it must not be promoted more often than the level. Latencies are lognormal, and each
depends on the one before it, as in a queue. `python -m bench.judge` prints every case.
"""

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy.signal import lfilter

from bench.measure import Row, measure_rows
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.rollout.judge import Arm, Counts, lower_bound, upper_bound
from millrace.serving.rollout.rollout import Split, decide_move, first_split, next_split
from millrace.serving.triton.backends.traffic_split.split_observations import BLOCK

ROLLOUTS = 1000
LOOKS = 10
SPREAD, MEMORY = 0.5, 0.8
"""Standard deviation of ln(latency), and its correlation with the one before."""
CANARY = RolloutSpec(kind="canary", hold_s=LOOKS)
SHADOW = RolloutSpec(kind="shadow", hold_s=LOOKS)
LIMITS = CANARY.judge


@dataclass(frozen=True)
class Truth:
    """The true properties of a candidate.

    Attributes:
        agreement: probability that it answers a row like the champion.
        slowdown: ratio of the geometric means of latency.
        failures: probability that a request fails.
    """

    agreement: float = 1.0
    slowdown: float = 1.0
    failures: float = 0.0


EQUAL = Truth()
AT_LIMIT = {
    "agreement at the limit": Truth(agreement=LIMITS.min_agreement),
    "latency at the limit": Truth(slowdown=LIMITS.max_slowdown),
    "failures at the limit": Truth(failures=LIMITS.max_failures),
}
BAD = {"5% of rows differ": Truth(agreement=0.95), "twice as slow": Truth(slowdown=2.0)}


@dataclass(frozen=True)
class Case:
    """Rollouts of one kind of candidate.

    Attributes:
        name: in words.
        spec: of the rollout.
        truth: the candidate.
        before_last: the candidate in all steps but the last; None for the same.
        requests: requests of all clients in one step.
    """

    name: str
    spec: RolloutSpec
    truth: Truth
    before_last: Truth | None = None
    requests: int = 120_000

    def at(self, split: Split) -> Truth:
        """Return the candidate in a step."""
        last = self.spec.kind == "shadow" or split.weight_percent == self.spec.steps[-1]
        return self.truth if last else self.before_last or self.truth


@dataclass(frozen=True)
class Rate:
    """The share of a case's rollouts that end in a promotion."""

    case: Case
    promoted: int
    rollouts: int
    steps: float = field(default=0.0)

    @property
    def share(self) -> float:
        """Share that was promoted."""
        return self.promoted / self.rollouts

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the share."""
        return (
            lower_bound(self.promoted, self.rollouts, 0.025),
            upper_bound(self.promoted, self.rollouts, 0.025),
        )


def wrong_cases() -> Iterator[Case]:
    """Yield the candidates that must not be promoted more often than the level."""
    for name, truth in AT_LIMIT.items():
        yield Case(f"canary, {name}", CANARY, truth)
        yield Case(f"canary, {name} in the last step", CANARY, truth, EQUAL)
        yield Case(f"shadow, {name}", SHADOW, truth, requests=10_000)


def bad_cases() -> Iterator[Case]:
    """Yield candidates that are clearly worse."""
    for name, truth in BAD.items():
        yield Case(f"canary, {name}", CANARY, truth)
        yield Case(f"shadow, {name}", SHADOW, truth, requests=10_000)


def equal_cases() -> Iterator[Case]:
    """Yield candidates that should be promoted."""
    yield Case("canary, equal", CANARY, EQUAL)
    yield Case("shadow, equal", SHADOW, EQUAL, requests=10_000)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Simulate the wanted rows."""
    measures = {"J1": partial(false_promotion, ROLLOUTS), "J2": partial(power, ROLLOUTS)}
    yield from measure_rows(measures, wanted)


def false_promotion(rollouts: int) -> Row:
    """J1: the largest share of rollouts at a limit that were promoted."""
    rates = [simulate(case, rollouts) for case in wrong_cases()]
    value = max(rate.share for rate in rates)
    return Row(
        name="J1",
        what=f"false promotions of candidates at a limit, largest of {len(rates)} cases, "
        f"{rollouts} simulated rollouts each",
        value=value,
        goal=f"≤ {LIMITS.level}",
        holds=max(rate.interval[1] for rate in rates) <= LIMITS.level,
        samples={rate.case.name: (rate.share, *rate.interval) for rate in rates},
    )


def power(rollouts: int) -> Row:
    """J2: the smallest share of rollouts of equal candidates that were promoted."""
    rates = [simulate(case, rollouts) for case in equal_cases()]
    value = min(rate.share for rate in rates)
    return Row(
        name="J2",
        what=f"promotions of equal candidates, {rollouts} simulated rollouts",
        value=value,
        goal="≥ 0.90",
        holds=value >= 0.90,
        samples={rate.case.name: (rate.share, *rate.interval) for rate in rates},
    )


def simulate(case: Case, rollouts: int, seed: int = 0) -> Rate:
    """Simulate the rollouts of a case, and count the promotions."""
    generator = np.random.default_rng(seed)
    ends = [simulate_rollout(case, generator) for _ in range(rollouts)]
    return Rate(
        case,
        promoted=sum(promoted for promoted, _ in ends),
        rollouts=rollouts,
        steps=float(np.mean([looks / LOOKS for _, looks in ends])),
    )


def simulate_rollout(case: Case, generator: np.random.Generator) -> tuple[bool, int]:
    """Simulate one rollout; return whether it ended in a promotion, and after how many looks."""
    split, looks = first_split("m", 1, 2, case.spec, now=0.0), 0
    while True:
        for look, counts in enumerate(simulate_step(case, split, generator), start=1):
            looks += 1
            to = decide_move(split, case.spec, counts, now=split.began + look)
            if to.kind != "stay":
                break
        if to.weight_percent is None:
            return to.kind == "promote", looks
        split = next_split(split, case.spec, to.weight_percent, now=0.0)


def simulate_step(case: Case, split: Split, generator: np.random.Generator) -> Iterator[Counts]:
    """Yield the counts of a step at each look."""
    truth, requests = case.at(split), case.requests // LOOKS
    share = split.weight_percent / 100
    taken = generator.binomial(requests, share, LOOKS) if share else np.full(LOOKS, requests)
    left = requests - taken if share else taken
    compared = generator.binomial(taken, split.compare_percent / 100)
    agreeing = np.cumsum(generator.binomial(compared, truth.agreement))
    failed = np.cumsum(generator.binomial(taken, truth.failures))
    taken, left, compared = np.cumsum(taken), np.cumsum(left), np.cumsum(compared)
    theirs = draw_blocks(int(taken[-1]), np.log(truth.slowdown), generator)
    ours = draw_blocks(int(left[-1]), 0.0, generator)
    for look in range(LOOKS):
        yield Counts(
            count_arm(ours, int(left[look])),
            replace(count_arm(theirs, int(taken[look])), failures=int(failed[look])),
            compared=int(compared[look]),
            agreeing=int(agreeing[look]),
        )


def draw_blocks(
    requests: int, mean: float, generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Return the mean ln(latency) of each block of an arm's requests."""
    shocks = generator.normal(0.0, SPREAD * (1 - MEMORY**2) ** 0.5, requests)
    latencies = lfilter([1.0], [1.0, -MEMORY], shocks) + mean
    means: npt.NDArray[np.float64] = (
        latencies[: requests // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    )
    return means


def count_arm(means: npt.NDArray[np.float64], requests: int) -> Arm:
    """Return the splitter's counts after so many requests."""
    seen = means[: requests // BLOCK]
    return Arm(
        requests=requests,
        blocks=len(seen),
        log_latency=float(seen.sum()),
        log_latency_squares=float((seen**2).sum()),
    )


def main() -> None:
    """Print every case."""
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else ROLLOUTS
    table = Table(title=f"{rollouts} simulated rollouts each, level {LIMITS.level}")
    for title in ("candidate", "promoted", "95% interval", "steps until the end"):
        table.add_column(title)
    for case in (*wrong_cases(), *bad_cases(), *equal_cases()):
        rate = simulate(case, rollouts)
        low, high = rate.interval
        table.add_row(
            case.name, f"{rate.share:.2%}", f"{low:.2%} to {high:.2%}", f"{rate.steps:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
