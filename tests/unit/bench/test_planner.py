"""The rows of the planner's benchmark, from measurements made by hand."""

from dataclasses import replace

import pytest

from bench.catalog import MODULES
from bench.planner import (
    CONFIGURATIONS,
    INTERVALS,
    LARGE_CONFIGURATION,
    LARGE_MEMORY,
    NAMES,
    error_row,
    interval_row,
    row_of,
)
from bench.planner_runs import configurations
from millrace.models.planner.published_runs import measured_runs, published_fits
from tests.unit.models.planner.test_measurements import FIRST


def measured(quantity, ratio):
    """Return measurements that are `ratio` times as large as their estimates."""
    fit = published_fits()[quantity]
    return [
        replace(
            FIRST,
            quantity=quantity,
            model=run.model,
            terms=run.terms,
            measured=ratio * fit.estimate(run.terms).value,
        )
        for run in measured_runs()
        if run.quantity == quantity and run.is_held_out
    ]


@pytest.mark.parametrize(("ratio", "holds"), [(1.0, True), (1.19, True), (1.5, False)])
def test_the_error_has_a_goal(ratio, holds):
    row = error_row("PL1", measured("training_step", ratio))
    assert row.value == pytest.approx(abs(1 / ratio - 1), abs=1e-9)
    assert (row.holds, row.goal) == (holds, "≤ 0.20")
    assert "| h-mlp-1 |" in row.details


def test_memory_has_a_narrower_goal():
    assert error_row("PL2", measured("training_memory", 1.19)).goal == "≤ 0.15"
    assert not error_row("PL2", measured("training_memory", 1.19)).holds


def test_intervals_that_hold_everything_are_too_wide():
    assert not interval_row(measured("training_step", 1.0)).holds
    both = measured("training_step", 1.0) + measured("training_step", 100.0)[:2]
    assert interval_row(both).holds


def test_a_large_training_has_a_row_of_its_own():
    small = measured("training_memory", 1.0)
    large = [replace(small[0], model=LARGE_CONFIGURATION, measured=2 * small[0].measured)]
    assert row_of("PL8", small + large).value == pytest.approx(0.5)
    assert row_of("PL2", small + large).value == pytest.approx(0)
    with pytest.raises(ValueError, match="nothing was measured"):
        row_of("PL8", small)


def test_the_rows_are_the_quantities_and_the_configurations_are_held_out():
    assert MODULES["planner"] == (*NAMES, INTERVALS, LARGE_MEMORY)
    families = {each["name"]: each["family"] for each in configurations()}
    assert {families[name] for name in CONFIGURATIONS} == set(families.values())
    assert all(name.startswith("h-") for name in CONFIGURATIONS)
