"""This machine's measurements: what they are, and that they are made once."""

import json
import os
import subprocess
import sys
import time

import pytest

from millrace.models.common.other_programs import Others
from millrace.models.planner import this_machine
from millrace.models.planner.catalogue import Machines
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.this_machine import (
    FILE,
    measure_device,
    read_kept,
    this_device,
)
from tests.unit.models.planner.test_sheet import ROWS_WORK


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(this_machine, "COPIED_BYTES", 2**22)
    monkeypatch.setattr(this_machine, "MATRIX", 128)
    monkeypatch.setattr(this_machine, "KERNELS", 50)
    monkeypatch.setattr(this_machine, "TURNS", 1000)
    monkeypatch.setattr(this_machine, "PAUSE_SECONDS", 0.0)


def test_the_measurements_are_plausible():
    device = measure_device()
    assert device.is_cpu
    assert 1e-9 < device.python_seconds < 1e-5
    assert 2**16 <= device.cache < 2**34
    assert 1e8 < device.memory_bandwidth < 1e13
    assert all(1e8 < rate < 1e15 for rate in device.rates.values())
    assert 1e-8 < device.kernel_seconds < 1e-3


def test_a_machine_is_measured_once(tmp_path, monkeypatch):
    first = this_device(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(this_machine, "measure_device", None)
    assert this_device(tmp_path) == first


@pytest.mark.parametrize("key", ["cores", "memory"])
def test_another_machine_is_measured_again(tmp_path, key):
    this_device(tmp_path)
    known = json.loads((tmp_path / FILE).read_text())
    known["machine"][key] += 1
    (tmp_path / FILE).write_text(json.dumps(known))
    assert read_kept(tmp_path) is None


def test_a_container_with_another_limit_is_measured_again(tmp_path, monkeypatch):
    this_device(tmp_path)
    monkeypatch.setattr(this_machine, "memory_bytes", lambda: 2**30)
    assert this_device(tmp_path).memory == 2**30


def test_a_folder_in_place_of_the_file_is_a_warning(tmp_path, caplog):
    (tmp_path / FILE).mkdir()
    assert this_device(tmp_path).memory > 0
    assert FILE in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"machine": 3, "device": {}}', "[" * 5_000])
def test_a_damaged_file_is_measured_again(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    assert this_device(tmp_path).memory > 0
    assert read_kept(tmp_path) is not None


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert this_device(tmp_path / "file/folder").memory > 0
    assert "measures this machine again" in caplog.text


def test_after_a_restart_it_is_measured_again(tmp_path, monkeypatch):
    this_device(tmp_path)
    boot = tmp_path / "boot_id"
    boot.write_text("another")
    monkeypatch.setattr(this_machine, "BOOT", boot)
    assert read_kept(tmp_path) is None


def test_the_price_is_the_pipelines(tmp_path):
    assert this_device(tmp_path).price is None
    assert this_device(tmp_path, 1.2).price.dollars_per_hour == 1.2
    assert this_device(tmp_path).price is None


def others_take(monkeypatch, *shares):
    left = iter(shares)

    class Others:
        def __init__(self, cores):
            self.share = next(left)

        def __enter__(self):
            return self

        def __exit__(self, *exc):
            pass

    monkeypatch.setattr(this_machine, "Others", Others)
    return left


def test_figures_are_measured_until_nothing_runs_beside(monkeypatch):
    left = others_take(monkeypatch, 0.9, 0.1, 0.0, 0.0)
    assert not measure_device().disturbed
    assert list(left) == [0.0]


def test_what_is_measured_beside_others_counts_for_an_hour(tmp_path, monkeypatch):
    others_take(monkeypatch, *[1.0] * this_machine.MOST_CYCLES)
    first = this_device(tmp_path)
    assert read_kept(tmp_path) == first
    old = time.time() - this_machine.DISTURBED_SECONDS - 1
    os.utime(tmp_path / FILE, (old, old))
    assert read_kept(tmp_path) is None


def test_a_plan_says_that_the_machine_was_measured_beside_others(tmp_path, monkeypatch):
    others_take(monkeypatch, *[1.0] * this_machine.MOST_CYCLES)
    device = this_device(tmp_path)
    (hint,) = plan_sheet(ROWS_WORK, Machines("this-machine", device)).hints
    assert "measured again after an hour" in hint
    quiet = device.model_copy(update={"disturbed": False})
    assert plan_sheet(ROWS_WORK, Machines("this-machine", quiet)).hints == ()


def test_the_best_of_the_cycles_counts(monkeypatch):
    others_take(monkeypatch, 1.0, 0.0, 0.0)
    rates, seconds = iter([3.0, 9.0, 5.0]), iter([4.0, 2.0, 3.0])
    monkeypatch.setitem(this_machine.RATES, "fp32", lambda: next(rates))
    monkeypatch.setitem(this_machine.SECONDS, "python_seconds", lambda: next(seconds))
    device = measure_device()
    assert (device.rates["fp32"], device.python_seconds) == (9.0, 2.0)


def test_the_share_of_others_is_seen():
    code = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass"
    with subprocess.Popen([sys.executable, "-c", code]), Others(1) as others:
        time.sleep(0.7)
    assert others.share > 0.3


def test_the_largest_cache_is_read(tmp_path):
    assert this_machine._cache_bytes(tmp_path) == this_machine.COMMON_CACHE
    for number, size in enumerate(("64K", "1024K", "damaged")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}/size").write_text(size)
    assert this_machine._cache_bytes(tmp_path) == 2**20


def test_figures_of_an_earlier_release_are_measured_again(tmp_path):
    this_device(tmp_path)
    known = json.loads((tmp_path / FILE).read_text())
    del known["device"]["disturbed"]
    (tmp_path / FILE).write_text(json.dumps(known))
    assert read_kept(tmp_path) is None
