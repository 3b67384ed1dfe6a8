"""What follows from a measured quantity: rates, whole times and costs, beside their estimates."""

import math
from dataclasses import replace

import pytest

from millrace.models.planner.compared_figures import (
    ComparedFigure,
    batch_figures,
    derived_figures,
    fitted_figures,
)
from tests.unit.models.planner.test_measurements import FIRST
from tests.unit.models.planner.test_sheet import ROWS_WORK, TRAINING

STEP = replace(FIRST, estimate=0.1, low=0.05, high=0.2, measured=0.125)
UNIT = replace(STEP, quantity="online_unit")
JOB = replace(STEP, quantity="batch_job", estimate=40.0, low=20.0, high=80.0, measured=50.0)


def derived(measured, work=ROWS_WORK, dollars=None):
    return {each.name: each for each in derived_figures(measured, work, dollars)}


def test_a_rate_follows_from_a_step_and_its_interval_is_turned():
    rate = derived([STEP])["training_rate"]
    assert (rate.estimate, rate.measured) == (64 * 2 / 0.1, 64 * 2 / 0.125)
    assert (rate.low, rate.high) == (64 * 2 / 0.2, 64 * 2 / 0.05)


def test_the_cost_of_a_training_is_that_of_its_steps():
    found = derived([STEP], dollars=3.6)
    assert found["training_time"].estimate == pytest.approx(100)
    assert found["training_cost"].estimate == pytest.approx(0.1)
    assert found["training_cost"].measured == pytest.approx(0.125)
    assert "training_cost" not in derived([STEP])
    unknown = replace(ROWS_WORK, training=replace(TRAINING, steps=None))
    assert set(derived([STEP], unknown, 3.6)) == {"training_rate"}


def test_a_service_has_its_rate_its_day_and_the_cost_of_a_million():
    found = derived([UNIT], dollars=3.6)
    assert found["online_rate"].measured == pytest.approx(8)
    assert found["online_per_day"].measured == pytest.approx(8 * 86_400)
    assert found["online_cost_per_million"].measured == pytest.approx(125)
    assert "online_cost_per_million" not in derived([UNIT])


def test_a_batch_job_has_its_day_and_the_cost_of_a_million():
    found = {each.name: each for each in batch_figures(JOB, 1e6, "tokens", 3.6)}
    assert found["batch_per_day"].measured == pytest.approx(1e6 * 86_400 / 50)
    assert found["batch_cost_per_million"].estimate == pytest.approx(0.04)
    assert found["batch_cost_per_million"].measured == pytest.approx(0.05)
    assert found["batch_rate"].cells()[1] == "25,000 tokens/s (12,500 tokens/s to 50,000 tokens/s)"


def test_a_quantity_without_an_interval_has_none_where_it_is_turned():
    rate = derived([replace(STEP, low=0.0, high=math.inf)])["training_rate"]
    assert (rate.low, rate.high) == (0.0, math.inf)
    assert rate.as_json()["high"] is None
    assert "(" not in rate.cells()[1]


def test_a_row_of_the_table_has_the_error():
    (fitted,) = fitted_figures([STEP])
    words = ("time of a training step", "100 ms (50 ms to 200 ms)", "125 ms", "-20.0%")
    assert fitted.cells() == words


def test_what_is_only_measured_has_no_estimate():
    tail = ComparedFigure("online_call_p99", "latency, 99th percentile", "seconds", 0.002)
    assert tail.cells() == ("latency, 99th percentile", "", "2 ms", "")
    assert tail.as_json()["estimate"] is None
