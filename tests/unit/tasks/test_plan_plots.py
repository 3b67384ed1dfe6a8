"""The pictures of a plan: what they are drawn from, and that they can be drawn."""

from dataclasses import replace

import pytest

from millrace.models.common.pictures import png_of
from millrace.models.planner.catalogue import Machines, shipped_devices
from millrace.models.planner.compare import Bounds, judge_sheet
from millrace.models.planner.serving_column import ACTOR_BYTES
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.work_terms import SERVING_BYTES
from millrace.tasks.reports.plan_plots import (
    accuracy_figure,
    intensities,
    memory_parts,
    pictures_of,
)
from tests.unit.models.planner.test_measurements import FIRST
from tests.unit.models.planner.test_sheet import CPU, ONE, ROWS_WORK, SERVING, TRAINING, generating

L4 = Machines("l4", shipped_devices()["l4"])


def verdicts(work, *machines):
    return [judge_sheet(plan_sheet(work, each), Bounds()) for each in machines]


@pytest.mark.parametrize("work", [ROWS_WORK, generating()], ids=["rows", "tokens"])
def test_every_picture_is_drawn(work):
    figures = pictures_of(work, verdicts(work, ONE, L4))
    assert list(figures) == ["memory.png", "roofline.png", "cost.png"]
    for figure in figures.values():
        assert png_of(figure).startswith(b"\x89PNG")


def test_without_a_price_there_is_no_picture_of_costs():
    assert "cost.png" not in pictures_of(ROWS_WORK, verdicts(ROWS_WORK, CPU))


def test_memory_is_that_of_the_work():
    parts = memory_parts(ROWS_WORK, ONE)
    assert parts["training"]["activations"] == TRAINING.memory["activations"]
    assert parts["online"]["weights"] == 2 * SERVING.variants[0].weight_bytes
    shared = memory_parts(generating(tensor_parallel=2), ONE)["online"]
    assert shared["weights"] == 8e9
    assert shared["KV cache"] == 10 * 2**30


def test_many_rows_at_a_time_use_the_weights_more_often():
    found = intensities(ROWS_WORK)
    assert found["64 at a time"][0] > found["one row"][0]
    assert found["a training step"] == (pytest.approx(64 * 3e9 / 300e6), "fp32")


def test_accuracy_is_drawn_with_and_without_intervals():
    other = replace(FIRST, quantity="training_memory", low=0.0, high=float("inf"))
    assert png_of(accuracy_figure([FIRST, other])).startswith(b"\x89PNG")


def test_each_measured_quantity_has_its_axes():
    other = replace(FIRST, quantity="batch_job")
    shown = [each for each in accuracy_figure([FIRST, other]).axes if each.get_visible()]
    assert [each.get_title() for each in shown] == [
        "time of a training step",
        "time of a batch job",
    ]
    assert all(each.lines for each in shown)


def test_the_memory_of_a_job_is_that_of_all_actors():
    job = replace(ROWS_WORK.batch, instances=4)
    parts = memory_parts(replace(ROWS_WORK, batch=job), CPU)
    assert parts["batch"]["runtime"] == 4 * (SERVING_BYTES + ACTOR_BYTES)
