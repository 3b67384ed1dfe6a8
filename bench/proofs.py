"""PF1 and PF2: how often a proof accepts a latency over its bound, and one well within it.

Proofs are simulated, with each law of latency and each kind of schedule that a profile uses.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from bench.latency_laws import LAWS, Law
from bench.measure import Row, measure_rows
from millrace.serving.profile.profiler import LOOKS, plan_proof
from millrace.serving.profile.proof import Schedule, schedule_for

RUNS = 1000
OVER, WITHIN = 1.05, 0.8
"""The true p99 of PF1 and PF2, as shares of the bound."""
SCHEDULES: dict[str, Schedule] = {
    "3 requests/s": plan_proof(3, 100, 180)[1],
    **{f"{count} looks": schedule_for(LOOKS[:count]) for count in range(2, len(LOOKS) + 1)},
}


@dataclass(frozen=True)
class Simulated:
    """Simulated proofs of one law with one schedule.

    Attributes:
        law: name of the law.
        schedule: name of the schedule.
        accepted: share that was proved.
        requests: mean number of requests after which a proof was decided.
    """

    law: str
    schedule: str
    accepted: float
    requests: float


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Simulate the wanted rows."""
    yield from measure_rows({"PF1": false_accepts, "PF2": power}, wanted)


def false_accepts() -> Row:
    """PF1: the largest share of proofs of a p99 over its bound that were accepted."""
    found = simulate_all(OVER)
    value = max(each.accepted for each in found)
    return Row(
        name="PF1",
        what=f"proofs accepted where p99 is {OVER} of the bound, the largest share of {len(found)} "
        f"cases, {RUNS} simulated each",
        value=value,
        goal="≤ 0.01",
        holds=value <= 0.01,
        samples={f"{each.law}, {each.schedule}": (each.accepted,) for each in found},
        details=as_table(found),
    )


def power() -> Row:
    """PF2: the smallest share of proofs of a p99 well within its bound that were accepted."""
    found = simulate_all(WITHIN)
    longest = [each for each in found if each.schedule == f"{len(LOOKS)} looks"]
    value = min(each.accepted for each in longest)
    return Row(
        name="PF2",
        what=f"proofs accepted where p99 is {WITHIN} of the bound, the smallest share of "
        f"{len(longest)} laws with {len(LOOKS)} looks, {RUNS} simulated each",
        value=value,
        goal="more often than not",
        holds=value > 0.5,
        samples={f"{e.law}, {e.schedule}": (e.accepted, e.requests) for e in found},
        details=as_table(found),
    )


def simulate_all(share: float) -> list[Simulated]:
    """Simulate proofs of each law with each schedule; its p99 is such a share of the bound."""
    return [
        simulate(name, law, p99 / share, title, schedule)
        for name, (law, p99) in LAWS.items()
        for title, schedule in SCHEDULES.items()
    ]


def simulate(name: str, law: Law, bound: float, title: str, schedule: Schedule) -> Simulated:
    """Simulate proofs of one law with one schedule, which end as real ones do."""
    drawn, accepted, requests = np.random.default_rng(0), 0, 0
    for _ in range(RUNS):
        latencies = law(drawn, schedule.looks[-1])
        verdict = schedule.first_verdict(latencies, bound)
        accepted += verdict.is_proved
        requests += verdict.requests
    return Simulated(name, title, accepted / RUNS, requests / RUNS)


def as_table(found: list[Simulated]) -> str:
    """Return a Markdown table: a line for each law, with the share and the mean sample."""
    lines = ["| law |" + "".join(f" {title} |" for title in SCHEDULES)]
    lines.append("|---" * (len(SCHEDULES) + 1) + "|")
    for law in LAWS:
        cells = (each for each in found if each.law == law)
        shown = (f" {each.accepted:.1%} of {each.requests:,.0f} requests |" for each in cells)
        lines.append(f"| {law} |" + "".join(shown))
    return "\n".join(lines)
