"""What of a run is measured, beside its plan."""

import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from millrace.export.candidate import Candidate
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.planner.catalogue import Machines, shipped_devices
from millrace.models.planner.measurements import read_measurements
from millrace.models.planner.published_runs import published_fits
from millrace.tasks import plan_places, plan_run
from millrace.tasks.kinds.steps import KindReport
from millrace.tasks.plan import ledger_of
from millrace.tasks.plan_measured import (
    RunPlan,
    measured_batch,
    measured_in,
    measured_speed,
    step_seconds_of,
    units_of,
)
from millrace.tasks.plan_places import Place, cpu_name, gpu_place, pipeline_on
from millrace.tasks.plan_record import record_run
from millrace.tasks.plan_run import asked_of
from tests.docs_pages import ROOT
from tests.unit.models.planner.test_sheet import CPU, ROWS_WORK, TRAINING
from tests.unit.tasks.test_batch_run import REPORT as JOB

KIND = SimpleNamespace(name="graph")


@dataclass(frozen=True)
class Speed:
    latency_ms: float = 0.5
    per_second: float = 20_000.0
    peak_memory_bytes: int = 120_000_000
    p99_ms: float = 0.9


HISTORY = [
    {"samples_per_second": rate, "worker_memory_mib": 500.0 + n}
    for n, rate in enumerate((1000.0, 6400.0, 12_800.0, 12_800.0))
]
TRAINED = SimpleNamespace(history=HISTORY)
CHOSEN = Candidate("onnx-fp32", speed=Speed())
HERE = Place(CPU, published_fits(), cpu_name())
PLAN = RunPlan(ROWS_WORK, HERE, HERE)


def end_threads():
    for thread in threading.enumerate():
        if thread.name == "append-measurements":
            thread.join(30)


def done(value):
    future = Future()
    future.set_result(value)
    return future


REPORT = KindReport(
    metrics={},
    texts={"samples.md": "…"},
    tags={},
    description="",
    facts=[],
    sections=[("Candidates", "…")],
    rows=[],
)


def recorded(place):
    exported, run = SimpleNamespace(chosen=CHOSEN), SimpleNamespace(run_id="r1")
    report = record_run(done(PLAN), KIND, place, TRAINED, exported, REPORT, run)
    end_threads()
    return report


def by_quantity(plan=PLAN, trained=TRAINED, chosen=CHOSEN):
    found = measured_in(plan, KIND, trained, chosen.name, chosen.speed, "r1")
    return {each.quantity: each for each in found}


def test_each_quantity_of_a_run_is_measured():
    found = by_quantity()
    assert found["training_step"].measured == pytest.approx(64 * 2 / 12_800)
    assert found["training_memory"].measured == 503 * 2**20
    assert found["online_call"].measured == 0.0005
    assert found["online_unit"].measured == pytest.approx(1 / 20_000)
    assert found["online_memory"].measured == 120_000_000
    assert all(each.estimate > 0 and each.low < each.high for each in found.values())


def test_the_first_reports_of_a_training_do_not_count():
    assert step_seconds_of(TRAINING, "rows", HISTORY) == pytest.approx(64 * 2 / 12_800)
    assert step_seconds_of(TRAINING, "tokens", HISTORY) is None
    assert step_seconds_of(TRAINING, "rows", []) is None


def test_what_was_not_measured_is_left_out():
    silent = SimpleNamespace(history=[{"train_loss": 1.0}])
    unmeasured = replace(CHOSEN, speed=None)
    assert by_quantity(trained=silent, chosen=unmeasured) == {}
    unknown = replace(CHOSEN, name="onnx-other")
    assert set(by_quantity(chosen=unknown)) == {"training_step", "training_memory"}


def test_a_run_is_in_the_ledger_and_in_its_own_files(tmp_path):
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    report = recorded(place)
    assert set(report.texts) == {"samples.md", "plan/plan.json"}
    plan = json.loads(report.texts["plan/plan.json"])
    assert plan["quantities"]["training_step"]["measured"] == pytest.approx(0.01)
    assert set(plan["quantities"]["training_step"]["terms"]) > {"operations"}
    assert plan["derived"]["online_per_day"]["measured"] == pytest.approx(20_000 * 86_400)
    assert plan["derived"]["online_call_p99"] == {
        **{"estimate": None, "low": 0.0, "high": None},
        **{"measured": 0.0009, "unit": "seconds"},
    }
    assert {each.run_id for each in read_measurements(ledger_of(place))} == {"r1"}
    assert len(read_measurements(ledger_of(place))) == 5


def test_the_page_of_a_run_has_the_plan_beside_what_was_measured(tmp_path):
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    (before, (title, text)) = recorded(place).sections
    assert (before, title) == (("Candidates", "…"), "Plan")
    lines = text.splitlines()
    assert lines[0] == "| quantity | estimate | measured | error |"
    assert any(line.startswith("| rows at full load |") for line in lines)
    assert len(lines) == 2 + 5 + 1 + 2 + 2


def test_a_run_without_a_plan_records_nothing(tmp_path):
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    assert record_run(done(None), KIND, place, TRAINED, None, REPORT, None) == REPORT
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "tables").write_text("a file")
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    assert recorded(place).texts["plan/plan.json"]
    assert "the plan was not recorded" in caplog.text


def test_a_certificate_measures_the_speed_again():
    found = measured_speed(PLAN, KIND, "onnx-fp32", CHOSEN.speed, "r1")
    assert {each.quantity for each in found} == {"online_call", "online_unit", "online_memory"}
    assert measured_speed(PLAN, KIND, "onnx-fp32", None, "r1") == []


def test_a_batch_job_is_measured_by_its_own_units():
    whole = replace(JOB, resumed=0)
    (found,) = measured_batch(PLAN, KIND, "onnx-fp32", whole)
    assert (found.quantity, found.measured, found.run_id) == ("batch_job", 50.0, "f-1")
    assert units_of(whole) == 115
    assert units_of(replace(whole, tokens_in=900, tokens_out=400)) == 1300
    assert measured_batch(PLAN, KIND, "onnx-fp32", JOB) == []
    assert measured_batch(PLAN, KIND, None, whole) == []


def on_a_gpu(monkeypatch, name):
    machine = replace(this_machine(), gpu=name)
    monkeypatch.setattr(plan_places, "this_machine", lambda: machine)


def test_what_trained_on_a_gpu_is_beside_the_estimate_of_the_gpu(monkeypatch):
    on_a_gpu(monkeypatch, "NVIDIA H200")
    plan = RunPlan(ROWS_WORK, gpu_place([], 1), HERE)
    found = measured_in(plan, KIND, TRAINED, CHOSEN.name, CHOSEN.speed, "r")
    machines = {each.quantity: each.machine for each in found}
    assert machines["training_step"] == machines["training_memory"] == "NVIDIA H200"
    assert machines["online_call"] == cpu_name()
    assert "NVIDIA" not in cpu_name()
    step = next(each for each in found if each.quantity == "training_step")
    assert 0 < step.low < step.estimate < step.high < float("inf")


def test_what_answers_on_a_gpu_is_beside_the_estimate_of_the_gpu(monkeypatch):
    on_a_gpu(monkeypatch, "NVIDIA H200")
    place = gpu_place([], 1)
    plan = RunPlan(ROWS_WORK, place, place)
    found = measured_speed(plan, KIND, CHOSEN.name, CHOSEN.speed, "r")
    # The peak of the host's memory says nothing of the GPU's, which is what is estimated.
    assert {each.quantity for each in found} == {"online_call", "online_unit"}
    assert {each.machine for each in found} == {"NVIDIA H200"}
    assert all(0 < each.low < each.estimate < each.high < float("inf") for each in found)


def test_a_gpu_learns_from_its_own_runs_and_not_from_the_cpu_beside_it(monkeypatch):
    on_a_gpu(monkeypatch, "NVIDIA H200")
    plan = RunPlan(ROWS_WORK, gpu_place([], 1), HERE)
    found = measured_in(plan, KIND, TRAINED, CHOSEN.name, CHOSEN.speed, "r")
    slow = [replace(each, measured=4 * each.estimate) for each in found]
    assert (
        gpu_place(slow, 1).fits["training_step"].weights["kernels"]
        > 1.5 * (gpu_place([], 1).fits["training_step"].weights["kernels"])
    )
    of_cpu = [each for each in slow if each.machine == cpu_name()]
    assert gpu_place(of_cpu, 1).fits == gpu_place([], 1).fits


def test_a_gpu_that_the_catalogue_lacks_is_not_recorded(monkeypatch):
    on_a_gpu(monkeypatch, "NVIDIA GeForce 256")
    plan = RunPlan(ROWS_WORK, gpu_place([], 1), HERE)
    found = measured_in(plan, KIND, TRAINED, CHOSEN.name, CHOSEN.speed, "r")
    assert {each.quantity for each in found} == {"online_call", "online_unit", "online_memory"}


@pytest.mark.parametrize(
    ("engine", "workers", "gpus", "used"),
    [("torch", 1, 1, 1), ("torch", 2, 4, 2), ("torch", 2, 1, 0), ("xgboost", 1, 1, 0)],
)
def test_workers_have_gpus_if_there_is_one_for_each(
    monkeypatch, tmp_path, engine, workers, gpus, used
):
    on_a_gpu(monkeypatch, "NVIDIA H200")
    training = replace(ROWS_WORK.training, engine=engine, workers=workers)
    planned = []

    def plan(pipeline, installation, facts):
        planned.append(pipeline.training.precision)
        return replace(ROWS_WORK, training=training)

    monkeypatch.setattr(plan_run, "steps_of", lambda kind: SimpleNamespace(plan=plan))
    monkeypatch.setattr(plan_run, "this_device", lambda home, price: CPU.device)
    pipeline = load_pipeline(ROOT / "examples/tabular.yaml")
    asked = asked_of(KIND, pipeline, Installation(tmp_path, "", ""), None, gpus)
    assert (asked.training_gpus, asked.serves_on_gpu) == (used, False)
    assert planned == (["fp32", "bf16"] if used else ["fp32"])


def test_a_pipeline_leaves_workers_actors_and_precision_to_the_machines():
    pipeline = load_pipeline(ROOT / "examples/tabular.yaml")
    on_gpus = pipeline_on(pipeline, Machines("h200", shipped_devices()["h200"], 4))
    assert (on_gpus.training.num_workers, on_gpus.training.precision) == (4, "bf16")
    assert (on_gpus.batch.num_actors, on_gpus.serving.instance_count) == (4, 4)
    on_cpu = pipeline_on(pipeline, CPU)
    assert on_cpu.training.precision == "fp32"
    assert on_cpu.training.workers == pipeline.training.workers
    assert on_cpu.batch.num_actors == CPU.device.cores
