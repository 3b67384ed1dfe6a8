"""The runs of a CPU machine and of a GPU: what is fitted on, and what the fits have not seen."""

from statistics import mean, median

import pytest
import yaml

from millrace.models.planner.estimates import QUANTITIES, UNFITTED
from millrace.models.planner.measurements import MACHINE_SPREAD, scaled_fit
from millrace.models.planner.published_runs import (
    ON_GPU,
    counted_terms,
    fit_runs,
    gpu_runs,
    large_runs,
    measured_runs,
    published_fits,
    runs_to_fit,
)
from tests.docs_pages import ROOT

PAGE = (ROOT / "docs/planner.md").read_text()
PROSE = " ".join(PAGE.split())
LISTED = yaml.safe_load((ROOT / "bench/planner_runs.yaml").read_text())
LISTED_GPU = yaml.safe_load((ROOT / "bench/planner_gpu.yaml").read_text())


INTEL, EPYC = MACHINES = ("Intel Xeon with AMX", "AMD EPYC")


def held_out(name, machine):
    runs = [each for each in measured_runs() if (each.quantity, each.machine) == (name, machine)]
    return [each for each in runs if each.is_held_out]


def goal(name):
    return 0.15 if QUANTITIES[name].unit == "bytes" else 0.20


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_stored_weights_are_those_of_the_runs(name):
    fitted, stored = fit_runs(name), published_fits()[name]
    assert fitted.weights == pytest.approx(stored.weights, rel=1e-3, abs=1e-6)
    assert (fitted.low, fitted.high) == pytest.approx((stored.low, stored.high), rel=1e-3)


@pytest.mark.parametrize("machine", MACHINES)
def test_every_listed_configuration_is_measured_on_both_machines(machine):
    measured = {each.model for each in measured_runs() if each.machine == machine}
    assert measured == {each["name"] for part in ("fit", "held_out") for each in LISTED[part]}
    assert len(LISTED["held_out"]) == 20


def test_every_large_configuration_is_measured():
    assert {each.model for each in large_runs()} == {each["name"] for each in LISTED["large"]}


@pytest.mark.parametrize("name", QUANTITIES)
def test_no_run_that_is_held_out_is_fitted(name):
    assert not any(each.model.startswith("h-") for each in runs_to_fit(name))
    assert all(len(held_out(name, machine)) == 20 for machine in MACHINES)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", QUANTITIES)
def test_what_is_held_out_is_estimated_within_the_goal(name, machine):
    fit, runs = published_fits()[name], held_out(name, machine)
    errors = [abs(fit.estimate(run.terms).value / run.measured - 1) for run in runs]
    assert median(errors) <= goal(name)


def test_the_memory_of_a_large_worker_is_estimated_within_the_goal():
    fit = published_fits()["training_memory"]
    runs = [r for r in large_runs() if r.quantity == "training_memory" and r.is_held_out]
    assert len(runs) == 6
    assert all(2**30 < run.measured < 4 * 2**30 for run in runs)
    errors = {r.model: abs(fit.estimate(r.terms).value / r.measured - 1) for r in runs}
    assert max(errors.values()) <= 0.15, errors
    assert f"at most {100 * max(errors.values()):.1f}%" in PROSE
    assert f"median {100 * median(errors.values()):.1f}%" in PROSE


@pytest.mark.parametrize(
    ("name", "words"), [("training_step", "a step by a median"), ("batch_job", "a batch job by")]
)
def test_the_times_of_large_models_are_estimated_within_the_goal(name, words):
    fit = published_fits()[name]
    runs = [r for r in large_runs() if r.quantity == name and r.is_held_out]
    error = median(abs(fit.estimate(r.terms).value / r.measured - 1) for r in runs)
    assert error <= goal(name)
    assert f"{words} {100 * error:.1f}%" in PROSE


@pytest.mark.parametrize("name", [name for name in QUANTITIES if counted_terms(name, on_gpu=False)])
def test_bytes_that_are_counted_are_there_at_least_once(name):
    weights = published_fits()[name].weights
    assert all(weights[each] >= 1 for each in counted_terms(name, on_gpu=False))


@pytest.mark.parametrize("machine", MACHINES)
def test_the_intervals_hold_what_they_should(machine):
    runs = [run for name in QUANTITIES for run in held_out(name, machine)]
    fits = published_fits()
    held = [fits[run.quantity].estimate(run.terms).holds(run.measured) for run in runs]
    assert 0.80 <= sum(held) / len(held) <= 0.98


def accuracy(fits, runs):
    """Return the median error of runs, and how many intervals hold, each by a fit of its own."""
    pairs = [(fit.estimate(run.terms), run.measured) for fit, run in zip(fits, runs, strict=True)]
    error = median(abs(each.value / measured - 1) for each, measured in pairs)
    return error, sum(each.holds(measured) for each, measured in pairs)


def cell(error, held):
    return f"{100 * error:.1f}%, {held} of 20"


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_page_has_the_errors(name):
    found = [(machine, held_out(name, machine)) for machine in MACHINES]
    cells = [cell(*accuracy([published_fits()[name]] * 20, runs)) for _, runs in found]
    assert f"| {QUANTITIES[name].words} | {' | '.join(cells)} |" in PAGE


def on_a_new_machine(name, machine):
    """Return the accuracy on a machine that no weight is from, before and after three runs."""
    fit, runs = fit_runs(name, without=machine), held_out(name, machine)
    own = {}
    for run in measured_runs():
        if (run.quantity, run.machine) == (name, machine) and run.model in CALIBRATIONS:
            ratios = [run.measured / fit.estimate(run.terms).value]
            spread = MACHINE_SPREAD[QUANTITIES[name].unit]
            own[run.kind] = scaled_fit(fit, ratios, counted_terms(name, on_gpu=False), spread)
    return accuracy([fit] * 20, runs), accuracy([own[run.kind] for run in runs], runs)


CALIBRATIONS = ("f-mlp-2", "f-trees-1", "f-lm-2")
"""A network, trees and a decoder, each run and scored once."""


@pytest.mark.parametrize("name", QUANTITIES)
def test_the_page_has_the_errors_on_a_new_machine_before_and_after_three_runs(name):
    found = [each for machine in MACHINES for each in on_a_new_machine(name, machine)]
    cells = " | ".join(cell(*each) for each in found)
    assert f"| {QUANTITIES[name].words} | {cells} |" in PAGE


def test_three_runs_bring_a_new_machine_within_the_goal():
    for machine in MACHINES:
        found = {name: on_a_new_machine(name, machine) for name in QUANTITIES}
        # Within two points: trees at full load, and integer variants on the Intel machine, differ.
        assert all(after[0] <= goal(name) + 0.02 for name, (_, after) in found.items())
        before, after = (mean(each[n][0] for each in found.values()) for n in (0, 1))
        assert after < before


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


def test_a_graph_is_measured_on_a_gpu_in_two_types():
    graphs = {each["name"] for part in LISTED_GPU.values() for each in part} - {
        each["name"] for part in LISTED_GPU.values() for each in part if "lm" in each["name"]
    }
    for name in ("online_call", "online_unit"):
        assert sorted(r.model for r in gpu_runs() if r.quantity == name) == sorted([*graphs] * 2)


def test_a_graph_on_a_gpu_is_estimated_better_than_by_the_data_sheet():
    for name in ("online_call", "online_unit"):
        runs, fit = held_out_on_gpu(name), published_fits(on_gpu=True)[name]
        assert all(fit.weights[each] >= 1 for each in ("operations", "weights"))
        ours, sheets = (
            median(abs(each.estimate(run.terms).value / run.measured - 1) for run in runs)
            for each in (fit, UNFITTED[name])
        )
        assert ours < sheets / 2
        assert f"{100 * sheets:.1f}%" in PAGE.split("**Graphs on a GPU.**")[1]


def test_a_gpu_is_no_faster_than_its_data_sheet_and_does_not_send_gradients_for_nothing():
    weights = published_fits(on_gpu=True)["training_step"].weights
    assert all(weights[each] >= 1 for each in ("operations", "memory", "gradients"))


@pytest.mark.parametrize("name", ON_GPU)
def test_the_page_has_the_errors_of_a_gpu(name):
    fit, runs = published_fits(on_gpu=True)[name], held_out_on_gpu(name)
    estimates = [(fit.estimate(run.terms), run.measured) for run in runs]
    errors = [abs(each.value / measured - 1) for each, measured in estimates]
    held = sum(each.holds(measured) for each, measured in estimates)
    # The latency of one row misses the goal: 20%.
    assert median(errors) <= (0.24 if name == "online_call" else goal(name))
    assert held >= 0.8 * len(runs)
    words = f"| {QUANTITIES[name].words} | {100 * median(errors):.1f}% | {held} of {len(runs)} |"
    assert words in PAGE.split("**Trainings on a GPU.**")[1]
