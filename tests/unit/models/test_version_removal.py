from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import client, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_removal import Removal
from millrace.models.registry.version_retention import (
    ARTIFACTS_TAG,
    FILES,
    REMOVED_TAG,
    StoredRuns,
    find_references,
)


@dataclass
class Made:
    """A registered version with files, and where they are."""

    version: ModelVersion
    run: Path
    model: Path


@pytest.fixture
def stored(mlflow_places: Installation) -> StoredRuns:
    return StoredRuns(mlflow_places.tracking_uri, mlflow_places.artifacts)


@pytest.fixture
def removal(stored: StoredRuns) -> Removal:
    return Removal(stored)


def numbers_of(stored: StoredRuns, model: str) -> list[int]:
    return sorted(each.version for each in stored.list_versions() if each.model == model)


@pytest.fixture
def make(mlflow_places: Installation) -> Callable[[str], Made]:
    """Return a function that registers one more version of a model."""

    def register(model: str) -> Made:
        store = client(mlflow_places.tracking_uri)
        with tracked_run(mlflow_places, model, {}, system_metrics=False) as run:
            run.log_text("what was trained", "notes.txt")
            logged = store.create_logged_model(run.experiment_id, source_run_id=run.run_id)
        folder = Path(urlsplit(logged.artifact_location).path)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_text("weights")
        if not store.search_registered_models(f"name = '{model}'"):
            store.create_registered_model(model)
        tags = {"millrace.digest": "abc", "millrace.dataset": f"{model} version 4"}
        made = store.create_model_version(
            model, f"models:/{logged.model_id}", run.run_id, tags=tags, model_id=logged.model_id
        )
        info = store.get_run(run.run_id).info
        found = ModelVersion(model, int(made.version), "abc", run.run_id, (), tags, made.source)
        return Made(found, Path(urlsplit(info.artifact_uri).path), folder)

    return register


def test_a_removed_version_has_no_files_and_stays_known(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    first, second = make("removed"), make("removed")
    assert removal.remove_version(first.version)
    assert numbers_of(stored, "removed") == [2]
    assert not first.model.exists()
    assert second.model.exists()
    assert first.run.exists()  # its run's own files have a retention of their own
    assert stored.find_removed("removed", 1) == {
        "model": "removed",
        "version": 1,
        "dataset": "removed version 4",
        "digest": "abc",
        "run_id": first.version.run_id,
    }
    assert stored.find_removed("removed", 2) is None
    assert stored.list_runs(["removed"], f"tags.`{REMOVED_TAG}` LIKE '%\"{FILES}\"%'") == []


def test_an_alias_that_was_set_meanwhile_protects_a_version(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    made = make("aliased")
    client(stored.tracking_uri).set_registered_model_alias("aliased", "champion", "1")
    assert not removal.remove_version(made.version)
    assert numbers_of(stored, "aliased") == [1]
    assert made.model.exists()


def test_a_copy_that_was_made_meanwhile_protects_a_version(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    made = make("original")
    client(stored.tracking_uri).copy_model_version("models:/original/1", "copied")
    (copied,) = (each for each in stored.list_versions() if each.model == "copied")
    assert find_references([copied], "original") == {1: "copied as copied version 1"}
    assert not removal.remove_version(made.version)
    assert removal.remove_version(copied)
    assert made.model.exists()
    assert removal.remove_version(made.version)
    assert not made.model.exists()


def test_files_that_another_version_names_stay(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    made = make("shared-files")
    store = client(stored.tracking_uri)
    store.create_registered_model("without-a-run")
    store.create_model_version("without-a-run", made.version.source)
    assert removal.remove_version(made.version)
    assert made.model.exists()


def test_a_removal_that_was_stopped_is_finished_by_the_next_one(
    make: Callable[[str], Made],
    stored: StoredRuns,
    removal: Removal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, other = make("stopped"), make("stopped")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Removal, "_delete", stop)
        with pytest.raises(KeyboardInterrupt):
            removal.remove_version(made.version)
    assert numbers_of(stored, "stopped") == [2]
    assert made.model.exists()
    before = stored.find_removed("stopped", 1)
    removal.finish_removals("stopped")
    assert not made.model.exists()
    assert other.model.exists()
    assert before is not None
    assert stored.find_removed("stopped", 1) == before
    removal.finish_removals("stopped")


def test_a_version_whose_run_or_files_were_deleted_by_hand_is_removed(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    without_run, without_files, gone = (make("by-hand") for _ in range(3))
    store = client(stored.tracking_uri)
    store.delete_run(without_run.version.run_id)
    store.delete_logged_model(without_files.version.source.removeprefix("models:/"))
    store.delete_model_version("by-hand", "3")
    for made in (without_run, without_files, gone):
        assert removal.remove_version(made.version)
    assert numbers_of(stored, "by-hand") == []
    assert not without_run.model.exists()


def test_an_error_of_mlflow_is_one_of_millrace(stored: StoredRuns) -> None:
    with pytest.raises(WorkError, match="the runs cannot be listed: MLflow's registry failed"):
        stored.list_runs(None, "no condition of MLflow")


def test_the_artifacts_of_a_run_go_and_its_metrics_stay(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal
) -> None:
    made = make("old-run")
    (run,) = stored.list_runs(["old-run"], "attributes.status = 'FINISHED'")
    removal.remove_artifacts(run, "2026-01-01T00:00:00")
    assert not made.run.exists()
    (left,) = stored.list_runs(["old-run"], f"tags.`{ARTIFACTS_TAG}` != ''")
    assert left.info.run_id == made.version.run_id


def test_nothing_is_deleted_outside_of_the_own_folder(
    make: Callable[[str], Made], stored: StoredRuns, removal: Removal, tmp_path: Path
) -> None:
    made = make("outside")
    (run,) = stored.list_runs(["outside"], "")
    theirs = tmp_path / run.info.run_id / "artifacts"
    theirs.mkdir(parents=True)
    moved = Removal(replace(stored, artifacts=stored.artifacts.parent / "elsewhere"))
    with pytest.raises(InputError, match="does not delete anything"):
        moved.remove_artifacts(run, "2026-01-01T00:00:00")
    with pytest.raises(InputError, match="does not delete anything"):
        moved.remove_version(made.version)
    assert numbers_of(stored, "outside") == [1]
    run.info._artifact_uri = str(stored.artifacts)
    with pytest.raises(InputError, match="does not delete anything"):
        removal.remove_artifacts(run, "2026-01-01T00:00:00")
    link = stored.artifacts / run.info.run_id
    link.symlink_to(tmp_path / run.info.run_id)
    run.info._artifact_uri = str(link / "artifacts")
    with pytest.raises(InputError, match="does not delete anything"):
        removal.remove_artifacts(run, "2026-01-01T00:00:00")
    assert theirs.exists()
    link.unlink()
