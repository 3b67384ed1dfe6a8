"""The runs of a CPU machine and of a GPU: what is fitted on, and what the fits have not seen."""

from dataclasses import replace
from statistics import median

import pytest
import yaml

from millrace.models.planner.estimates import QUANTITIES
from millrace.models.planner.measurements import fits_of
from millrace.models.planner.published_runs import (
    ON_GPU,
    counted_terms,
    fit_runs,
    gpu_runs,
    large_runs,
    measured_runs,
    other_cpu_runs,
    published_fits,
    runs_to_fit,
)
from tests.docs_pages import ROOT
from tests.unit.models.planner.test_measurements import FIRST

PAGE = (ROOT / "docs/planner.md").read_text()
LISTED = yaml.safe_load((ROOT / "bench/planner_runs.yaml").read_text())
LISTED_GPU = yaml.safe_load((ROOT / "bench/planner_gpu.yaml").read_text())


def held_out(name):
    return [each for each in measured_runs() if each.quantity == name and each.is_held_out]


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_stored_weights_are_those_of_the_runs(name):
    fitted, stored = fit_runs(name), published_fits()[name]
    assert fitted.weights == pytest.approx(stored.weights, rel=1e-3, abs=1e-6)
    assert (fitted.low, fitted.high) == pytest.approx((stored.low, stored.high), rel=1e-3)


def test_every_listed_configuration_is_measured():
    measured = {each.model for each in (*measured_runs(), *large_runs())}
    assert measured == {each["name"] for part in LISTED.values() for each in part}
    assert len(LISTED["held_out"]) == 20


def test_no_run_that_is_held_out_is_fitted():
    for name in QUANTITIES:
        assert not any(each.model.startswith("h-") for each in runs_to_fit(name))
        assert len(held_out(name)) == 20


@pytest.mark.parametrize("name", QUANTITIES)
def test_what_is_held_out_is_estimated_within_the_goal(name):
    fit, runs = published_fits()[name], held_out(name)
    errors = [abs(fit.estimate(run.terms).value / run.measured - 1) for run in runs]
    assert median(errors) <= (0.15 if QUANTITIES[name].unit == "bytes" else 0.20)


def test_the_memory_of_a_large_worker_is_estimated_within_the_goal():
    fit = published_fits()["training_memory"]
    runs = [r for r in large_runs() if r.quantity == "training_memory" and r.is_held_out]
    assert len(runs) == 6
    assert all(2**30 < run.measured < 4 * 2**30 for run in runs)
    errors = {r.model: abs(fit.estimate(r.terms).value / r.measured - 1) for r in runs}
    assert max(errors.values()) <= 0.15, errors
    assert f"at most {100 * max(errors.values()):.1f}%" in PAGE
    assert f"median {100 * median(errors.values()):.1f}%" in PAGE


@pytest.mark.parametrize("name", [name for name in QUANTITIES if counted_terms(name, on_gpu=False)])
def test_bytes_that_are_counted_are_there_at_least_once(name):
    weights = published_fits()[name].weights
    assert all(weights[each] >= 1 for each in counted_terms(name, on_gpu=False))


def test_the_intervals_hold_what_they_should():
    runs = [run for name in QUANTITIES for run in held_out(name)]
    fits = published_fits()
    held = [fits[run.quantity].estimate(run.terms).holds(run.measured) for run in runs]
    assert 0.80 <= sum(held) / len(held) <= 0.98


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_page_has_the_errors(name):
    fit, runs = published_fits()[name], held_out(name)
    estimates = [(fit.estimate(run.terms), run.measured) for run in runs]
    error = median(abs(each.value / measured - 1) for each, measured in estimates)
    held = sum(each.holds(measured) for each, measured in estimates)
    words = QUANTITIES[name].words
    assert f"| {words} | {100 * error:.1f}% | {held} of {len(runs)} |" in PAGE


def held_out_on_gpu(name):
    return [each for each in gpu_runs() if each.quantity == name and each.is_held_out]


@pytest.mark.parametrize("name", ON_GPU)
def test_the_stored_weights_of_a_gpu_are_those_of_its_runs(name):
    fitted, stored = fit_runs(name, on_gpu=True), published_fits(on_gpu=True)[name]
    assert fitted.weights == pytest.approx(stored.weights, rel=1e-3, abs=1e-6)
    assert (fitted.low, fitted.high) == pytest.approx((stored.low, stored.high), rel=1e-3)
    assert not any(each.is_held_out for each in runs_to_fit(name, on_gpu=True))


def test_every_configuration_listed_for_a_gpu_is_measured():
    assert {each.model for each in gpu_runs()} == {
        each["name"] for part in LISTED_GPU.values() for each in part
    }


def test_a_gpu_is_no_faster_than_its_data_sheet_and_does_not_send_gradients_for_nothing():
    weights = published_fits(on_gpu=True)["training_step"].weights
    assert all(weights[each] >= 1 for each in ("operations", "memory", "gradients"))


@pytest.mark.parametrize("name", ON_GPU)
def test_the_page_has_the_errors_of_a_gpu(name):
    fit, runs = published_fits(on_gpu=True)[name], held_out_on_gpu(name)
    estimates = [(fit.estimate(run.terms), run.measured) for run in runs]
    errors = [abs(each.value / measured - 1) for each, measured in estimates]
    held = sum(each.holds(measured) for each, measured in estimates)
    assert median(errors) <= (0.15 if QUANTITIES[name].unit == "bytes" else 0.20)
    assert held >= 0.8 * len(runs)
    words = f"| {QUANTITIES[name].words} | {100 * median(errors):.1f}% | {held} of {len(runs)} |"
    assert words in PAGE.split("**Trainings on a GPU.**")[1]


def own_fits(kind, name):
    calibrations = [r for r in other_cpu_runs() if not r.is_held_out and r.kind == kind]
    measured = [
        replace(FIRST, quantity=r.quantity, kind=kind, measured=r.measured, terms=r.terms)
        for r in calibrations
    ]
    return fits_of(measured, FIRST.machine)[name]


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_page_has_the_errors_on_another_machine_before_and_after_three_runs(name):
    runs = [r for r in other_cpu_runs() if r.quantity == name and r.is_held_out]
    assert len(runs) == 6

    def row(fits):
        estimates = [fit.estimate(run.terms) for fit, run in zip(fits, runs, strict=True)]
        pairs = list(zip(estimates, runs, strict=True))
        error = median(abs(each.value / run.measured - 1) for each, run in pairs)
        held = sum(each.holds(run.measured) for each, run in pairs)
        return f"{100 * error:.1f}%, {held} of {len(runs)}"

    before = row([published_fits()[name]] * len(runs))
    after = row([own_fits(run.kind, name) for run in runs])
    assert f"| {QUANTITIES[name].words} | {before} | {after} |" in PAGE
