"""A run that its process cannot end is ended by whoever looks next."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Installation
from millrace.models.registry import tracking
from millrace.models.registry.open_runs import FOLDER, Note, OpenRun
from millrace.models.registry.tracking import TrackedRun, client, end_left_runs, tracked_run


@pytest.fixture
def run(mlflow_places: Installation) -> TrackedRun:
    """A run that is open, by nobody."""
    with tracked_run(mlflow_places, "left", {}, system_metrics=False) as ended:
        pass
    store = client(mlflow_places.tracking_uri)
    made = store.create_run(ended.experiment_id).info
    return TrackedRun(mlflow_places.tracking_uri, ended.experiment_id, made.run_id)


@pytest.fixture
def opened(run: TrackedRun, tmp_path: Path) -> Iterator[OpenRun]:
    """Its file, which this process holds."""
    made = OpenRun(tmp_path, Note(run.tracking_uri, run.run_id))
    made.write()
    yield made
    made.close()


def kept(run: TrackedRun) -> Any:
    return run.client.get_run(run.run_id)


def files(folder: Path) -> list[Path]:
    return list((folder / FOLDER).iterdir())


def test_a_run_whose_process_lives_is_left_alone(
    run: TrackedRun, opened: OpenRun, tmp_path: Path
) -> None:
    end_left_runs(tmp_path)
    assert kept(run).info.status == "RUNNING"
    assert len(files(tmp_path)) == 1


def test_one_whose_process_is_gone_failed(run: TrackedRun, opened: OpenRun, tmp_path: Path) -> None:
    opened.close()
    end_left_runs(tmp_path)
    assert kept(run).info.status == "FAILED"
    assert (
        kept(run).data.tags["millrace.error"]
        == "the run's process ended without reporting a result"
    )
    assert files(tmp_path) == []


def test_one_that_ended_unheard_ends_as_it_did(
    run: TrackedRun, opened: OpenRun, tmp_path: Path
) -> None:
    opened.ends_as("FINISHED")
    opened.close()
    end_left_runs(tmp_path)
    assert kept(run).info.status == "FINISHED"
    assert "millrace.error" not in kept(run).data.tags


def test_one_that_was_deleted_is_forgotten(opened: OpenRun, tmp_path: Path) -> None:
    opened.close()
    (file,) = files(tmp_path)
    file.write_text(json.dumps({**json.loads(file.read_text()), "run_id": "0" * 32}))
    end_left_runs(tmp_path)
    assert files(tmp_path) == []


def test_an_mlflow_that_is_away_leaves_it_to_the_next(opened: OpenRun, tmp_path: Path) -> None:
    opened.close()
    (file,) = files(tmp_path)
    away = {**json.loads(file.read_text()), "tracking_uri": "http://127.0.0.1:9"}
    file.write_text(json.dumps(away))
    end_left_runs(tmp_path)
    assert files(tmp_path) == [file]


def test_a_disk_that_takes_no_file_stops_no_run(run: TrackedRun, tmp_path: Path) -> None:
    OpenRun(tmp_path / "nowhere", Note(run.tracking_uri, run.run_id)).write()


def test_a_run_whose_end_mlflow_does_not_take_is_ended_later(
    mlflow_places: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise TransientError("MLflow cannot be reached")

    with (
        monkeypatch.context() as meanwhile,
        tracked_run(mlflow_places, "left", {}, system_metrics=False) as run,
    ):
        meanwhile.setattr(tracking, "check_reachable", away)
        meanwhile.setattr("mlflow.MlflowClient.set_terminated", away)
    assert kept(run).info.status == "RUNNING"
    end_left_runs(mlflow_places.run)
    assert kept(run).info.status == "FINISHED"
