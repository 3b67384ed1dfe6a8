"""What of a run is measured, beside its plan."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from millrace.export.candidate import Candidate
from millrace.models.common.installation import Installation
from millrace.models.planner.catalogue import Machines
from millrace.models.planner.measurements import read_measurements
from millrace.models.planner.published_cpu import published_fits
from millrace.tasks.plan import ledger_of
from millrace.tasks.plan_record import RunPlan, measured_in, record_run, step_seconds_of
from tests.unit.models.planner.test_sheet import CPU, ROWS_WORK, TRAINING

KIND = SimpleNamespace(name="graph")


@dataclass(frozen=True)
class Speed:
    latency_ms: float = 0.5
    per_second: float = 20_000.0
    peak_memory_bytes: int = 120_000_000


HISTORY = [
    {"samples_per_second": rate, "worker_memory_mib": 500.0 + n}
    for n, rate in enumerate((1000.0, 6400.0, 12_800.0, 12_800.0))
]
TRAINED = SimpleNamespace(history=HISTORY)
CHOSEN = Candidate("onnx-fp32", speed=Speed())
PLAN = RunPlan(ROWS_WORK, CPU, published_fits())


def end_threads():
    for thread in threading.enumerate():
        if thread.name == "append-measurements":
            thread.join(30)


def done(value):
    future = Future()
    future.set_result(value)
    return future


def by_quantity(plan=PLAN, trained=TRAINED, chosen=CHOSEN):
    found = measured_in(plan, KIND, trained, chosen, "r1")
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
    exported, run = SimpleNamespace(chosen=CHOSEN), SimpleNamespace(run_id="r1")
    texts = record_run(done(PLAN), KIND, place, TRAINED, exported, run)
    assert set(texts) == {"plan/plan.json"}
    assert '"training_step"' in texts["plan/plan.json"]
    end_threads()
    assert {each.run_id for each in read_measurements(ledger_of(place))} == {"r1"}
    assert len(read_measurements(ledger_of(place))) == 5


def test_a_run_without_a_plan_records_nothing(tmp_path):
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    assert record_run(done(None), KIND, place, TRAINED, None, None) == {}
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_that_cannot_be_written_is_a_warning(tmp_path, caplog):
    (tmp_path / "tables").write_text("a file")
    place = Installation(tmp_path, "sqlite://", str(tmp_path / "tables"))
    exported, run = SimpleNamespace(chosen=CHOSEN), SimpleNamespace(run_id="r1")
    assert record_run(done(PLAN), KIND, place, TRAINED, exported, run)
    end_threads()
    assert "the plan was not recorded" in caplog.text


def test_machines_of_the_plan_are_this_machine():
    assert isinstance(PLAN.machines, Machines)
    assert PLAN.machines.device.is_cpu
