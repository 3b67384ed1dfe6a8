"""Which pipeline files are left out when the next run is chosen."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.planner.published_runs import published_fits
from millrace.tasks import next_run
from millrace.tasks.next_run import find_next_run
from millrace.tasks.plan_places import Place
from tests.unit.models.planner.test_sheet import CPU, ROWS_WORK, TRAINING

LARGE = replace(ROWS_WORK, training=replace(TRAINING, memory={"weights": 1e15}))
WORKS = {"small": ROWS_WORK, "large": LARGE}
FAULTS = {"crash": ZeroDivisionError("float division by zero"), "other": InputError("no pipeline")}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """A working folder of files, of which each is a work or raises an error."""
    monkeypatch.chdir(tmp_path)
    for name in (*WORKS, *FAULTS):
        (tmp_path / f"{name}.yaml").touch()

    def work_of(name, installation, *, call_functions):
        if name in FAULTS:
            raise FAULTS[name]
        return WORKS[name]

    place = Place(CPU, published_fits(), "this one")
    monkeypatch.setattr(next_run, "load_pipeline", lambda file: file.stem)
    monkeypatch.setattr(next_run, "work_of", work_of)
    monkeypatch.setattr(next_run, "cpu_place", lambda installation, measurements: place)


def test_a_found_file_that_raises_anything_or_does_not_fit_is_left_out():
    assert find_next_run([], None, []).file == "small.yaml"


def test_a_run_that_does_not_fit_is_not_recommended():
    named = [Path("large.yaml"), Path("small.yaml")]
    assert find_next_run(named, None, []).file == "small.yaml"
    assert find_next_run(named[:1], None, []) is None


def test_a_named_file_is_not_left_out_silently():
    with pytest.raises(InputError, match="no pipeline"):
        find_next_run([Path("other.yaml")], None, [])
