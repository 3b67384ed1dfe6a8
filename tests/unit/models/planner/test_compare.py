"""Which machines keep to the bounds, and which is the cheapest."""

from dataclasses import replace

import pytest

from millrace.models.planner.catalogue import Machines, shipped_devices
from millrace.models.planner.compare import (
    Bounds,
    choose_machines,
    judge_sheet,
    nearest_machines,
)
from millrace.models.planner.estimates import QUANTITIES
from millrace.models.planner.fit import Fit
from millrace.models.planner.sheet import STAGES, plan_sheet
from tests.unit.models.planner.test_sheet import ROWS_WORK, TRAINING, generating

DEVICES = shipped_devices()


ONE_WORKER = replace(ROWS_WORK, training=replace(TRAINING, workers=1))


def verdicts(work, bounds, *names):
    return [judge_sheet(plan_sheet(work, Machines(n, DEVICES[n])), bounds) for n in names]


def test_the_cheapest_that_is_enough_is_chosen():
    found = verdicts(ONE_WORKER, Bounds(), "h100", "l4", "h200")
    assert str(choose_machines(found).sheet.machines) == "l4"
    assert choose_machines(found).monthly == pytest.approx(0.44 * 730)


def test_what_does_not_fit_is_not_chosen():
    work = replace(ROWS_WORK, training=replace(TRAINING, workers=1, memory={"weights": 40e9}))
    found = verdicts(work, Bounds(), "l4", "h100")
    assert str(choose_machines(found).sheet.machines) == "h100"
    (broken,) = found[0].broken
    assert str(broken) == "training: 40.4 GB, 1.57 times the 25.8 GB that are allowed"


def test_each_bound_is_named_with_how_far_it_is_missed():
    bounds = Bounds(latency=1e-6, nightly=1e-3, budget=100.0)
    (found,) = verdicts(ONE_WORKER, bounds, "l4")
    assert [each.what for each in found.broken] == ["a month", "one row", "the nightly job"]
    assert found.broken[0].factor == pytest.approx(0.44 * 730 / 100)


FITTED = {
    name: Fit({term: 1.0 for term in each.terms}, low=0.5, high=2.0, rows=9, region={})
    for name, each in QUANTITIES.items()
}


def test_a_bound_inside_the_interval_is_doubtful_and_not_broken():
    machines = Machines("l4", DEVICES["l4"])
    sheet = plan_sheet(ONE_WORKER, machines, FITTED)
    rate = next(each for each in sheet.cells["online"]["speed"] if each.unit == "per second")
    bounds = Bounds(latency=1.5 * sheet.latency.value, load=0.75 * rate.value)
    found = judge_sheet(sheet, bounds)
    assert found.is_feasible
    assert [(each.what, each.factor) for each in found.doubtful] == [
        ("one row", pytest.approx(2 / 1.5)),
        ("the load", pytest.approx(1.5)),
    ]
    wide = Bounds(latency=2.1 * sheet.latency.value, load=0.4 * rate.value)
    assert judge_sheet(sheet, wide).doubtful == ()


def test_a_deadline_of_a_job_of_unknown_size_is_not_checked():
    sheet = plan_sheet(replace(ONE_WORKER, batch_units=None), Machines("l4", DEVICES["l4"]))
    assert judge_sheet(sheet, Bounds(nightly=60.0)).unchecked == ("batch.deadline",)
    assert judge_sheet(sheet, Bounds()).unchecked == ()


def test_a_decoders_latency_is_the_time_to_its_first_token():
    sheet = plan_sheet(generating(), Machines("h100", DEVICES["h100"]))
    assert "first token" in sheet.latency.name
    broken = judge_sheet(sheet, Bounds(latency=1e-9)).broken
    assert any("first token" in each.what for each in broken)


def test_where_none_is_enough_the_nearest_is_known():
    found = verdicts(ONE_WORKER, Bounds(budget=1.0), "h100", "l4")
    assert choose_machines(found) is None
    assert str(nearest_machines(found).sheet.machines) == "l4"


def test_a_machine_without_a_price_comes_last():
    found = verdicts(ONE_WORKER, Bounds(), "a40", "h100")
    assert found[0].monthly is None
    assert str(choose_machines(found).sheet.machines) == "h100"
    assert str(choose_machines(found[:1]).sheet.machines) == "a40"


def test_more_devices_than_there_are_is_a_bound():
    work = replace(ROWS_WORK, training=replace(TRAINING, workers=4))
    (found,) = verdicts(work, Bounds(), "h100")
    assert str(found.broken[0]) == "devices for training: 4, 4 times the 1 that are allowed"
    eight = judge_sheet(plan_sheet(work, Machines("h100", DEVICES["h100"], 8)), Bounds())
    assert eight.is_feasible


def test_a_load_above_what_a_machine_does_is_a_bound():
    found = verdicts(ONE_WORKER, Bounds(load=1e12), "l4", "h100")
    assert [each.what for verdict in found for each in verdict.broken] == ["the load"] * 2
    assert str(nearest_machines(found).sheet.machines) == "h100"
    (enough,) = verdicts(ONE_WORKER, Bounds(load=1.0), "l4")
    assert enough.is_feasible


def test_each_job_has_its_own_cheapest_machines():
    training = replace(TRAINING, workers=1, memory={"weights": 40e9})
    found = verdicts(replace(ROWS_WORK, training=training), Bounds(), "l4", "h100")
    chosen = {stage: choose_machines(found, stage).sheet.machines for stage in STAGES}
    assert {stage: str(machines) for stage, machines in chosen.items()} == {
        "training": "h100",
        "online": "l4",
        "batch": "l4",
    }
    assert choose_machines(found[:1], "training") is None
