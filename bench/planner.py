"""PL1 to PL8: how far the planner's estimates are off on this machine, by runs no weight is from.

Five of the configurations that are held out, one of each family, are run and scored once.
The estimates are those of the published weights; the details have also those that the home made,
which learns from one run to the next. `python -m bench.planner_runs ROWS.csv h-` measures all
twenty. PL8 trains one more, whose worker takes more than 1 GiB: what `millrace check --full` says
of memory must hold for large ones.
"""

import tempfile
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from bench.home import own_home
from bench.measure import Row, attempt
from bench.planner_runs import LARGE, configurations, list_of, run_all
from millrace.models.common.machine_cache import machine_cache
from millrace.models.planner.estimates import QUANTITIES, Name
from millrace.models.planner.measurements import Measurement
from millrace.models.planner.published_runs import published_fits
from millrace.models.planner.this_machine import this_device

CONFIGURATIONS = ("h-mlp-1", "h-cnn-3", "h-text-2", "h-trees-1", "h-lm-4")
LARGE_CONFIGURATION = "h-large-cnn"
TIME_GOAL, MEMORY_GOAL = 0.20, 0.15
INTERVAL_GOAL = (0.80, 0.98)
NAMES: dict[str, Name] = {
    "PL1": "training_step",
    "PL2": "training_memory",
    "PL3": "online_call",
    "PL4": "online_unit",
    "PL5": "online_memory",
    "PL6": "batch_job",
}
INTERVALS, LARGE_MEMORY = "PL7", "PL8"


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Run and score the configurations, and compare the estimates with what they measured."""
    chosen = [each for each in configurations() if each["name"] in CONFIGURATIONS]
    large = [each for each in list_of(LARGE) if each["name"] == LARGE_CONFIGURATION]
    runs: list[list[Measurement]] = []
    with own_home() as installation, tempfile.TemporaryDirectory() as folder:
        installation.prepared()
        this_device(machine_cache())
        if {*NAMES, INTERVALS} & {*wanted}:
            runs += run_all(installation, Path(folder), chosen)
        if LARGE_MEMORY in wanted:
            runs += run_all(installation, Path(folder), large, scores=False)
    measured = [each for run in runs for each in run]
    for name in wanted:
        yield attempt(name, partial(row_of, name, measured))


def row_of(name: str, measured: Sequence[Measurement]) -> Row:
    """Return a row, from the measurements that belong to it."""
    if name == LARGE_MEMORY:
        return error_row(name, _of(measured, "training_memory", is_large=True))
    if name == INTERVALS:
        return interval_row([each for each in measured if each.model != LARGE_CONFIGURATION])
    return error_row(name, _of(measured, NAMES[name], is_large=False))


def _of(measured: Sequence[Measurement], quantity: Name, *, is_large: bool) -> list[Measurement]:
    own = [
        each
        for each in measured
        if each.quantity == quantity and (each.model == LARGE_CONFIGURATION) == is_large
    ]
    if not own:
        raise ValueError(f"nothing was measured: {QUANTITIES[quantity].words}")
    return own


def error_row(name: str, measured: Sequence[Measurement]) -> Row:
    """Return the row of a quantity: the median error of its estimates."""
    quantity = QUANTITIES[measured[0].quantity]
    goal = MEMORY_GOAL if quantity.unit == "bytes" else TIME_GOAL
    errors = {each.model: error_of(each) for each in measured}
    lines = [
        f"| {each.model} | {errors[each.model]:+.1%} | {each.error:+.1%} |" for each in measured
    ]
    value = median(map(abs, errors.values()))
    return Row(
        name=name,
        what=f"planned {quantity.words}: median error of {', '.join(errors)}",
        value=value,
        goal=f"≤ {goal:.2f}",
        holds=value <= goal,
        samples={"errors": list(errors.values())},
        details="\n".join(["| run | error | of the home's estimate |", "|---|---|---|", *lines]),
    )


def error_of(measured: Measurement) -> float:
    """Return estimated ÷ measured − 1, by the published weights."""
    fit = published_fits()[measured.quantity]
    return fit.estimate(measured.terms).value / measured.measured - 1


def interval_row(measured: Sequence[Measurement]) -> Row:
    """Return the row of the intervals: the share of measurements that they hold."""
    fits = published_fits()
    held = [fits[each.quantity].estimate(each.terms).holds(each.measured) for each in measured]
    low, high = INTERVAL_GOAL
    share = sum(held) / len(held)
    return Row(
        name=INTERVALS,
        what=f"share of {len(held)} measurements inside the planner's 90% intervals",
        value=share,
        goal=f"{low:.2f} to {high:.2f}",
        holds=low <= share <= high,
        samples={"held": [float(each) for each in held]},
    )
