from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import client, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.models.registry.version_retention import (
    ARTIFACTS_TAG,
    StoredRuns,
    find_references,
    plan_versions,
)


def version(number: int, *aliases: str, model: str = "digits", **tags: str) -> ModelVersion:
    named = {f"millrace.{name}": value for name, value in tags.items()}
    return ModelVersion(model, number, "", "", aliases, named)


def test_the_newest_versions_and_those_somebody_needs_stay() -> None:
    versions = [version(5), version(1, "champion"), version(2), version(3), version(4)]
    plan = plan_versions(versions, 1, {3: "live"})
    assert plan.kept == {1: "alias champion", 3: "live", 5: "recent"}
    assert [each.version for each in plan.removed] == [2, 4]


def test_without_a_number_every_version_stays() -> None:
    assert plan_versions([version(1), version(2)], None, {}).removed == ()


def test_a_base_and_a_draft_model_are_needed() -> None:
    versions = [
        version(7, model="tuned", base="models:/digits/3"),
        version(8, model="fast", draft="digits/4"),
        version(9, model="other", base="models:/another/5", draft="another/6"),
    ]
    assert find_references(versions, "digits") == {
        3: "base of tuned version 7",
        4: "draft model of fast version 8",
    }


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
    make: Callable[[str], Made], stored: StoredRuns
) -> None:
    first, second = make("removed"), make("removed")
    stored.remove_version(first.version)
    assert [each.version for each in stored.list_versions("removed")] == [2]
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


def test_an_alias_that_was_set_meanwhile_protects_a_version(
    make: Callable[[str], Made], stored: StoredRuns, mlflow_places: Installation
) -> None:
    made = make("aliased")
    client(mlflow_places.tracking_uri).set_registered_model_alias("aliased", "champion", "1")
    stored.remove_version(made.version)
    (found,) = stored.list_versions("aliased")
    assert found.aliases == ("champion",)
    assert made.model.exists()


def test_the_artifacts_of_a_run_go_and_its_metrics_stay(
    make: Callable[[str], Made], stored: StoredRuns
) -> None:
    made = make("old-run")
    (run,) = stored.list_runs(["old-run"], "attributes.status = 'FINISHED'")
    stored.remove_artifacts(run, "2026-01-01T00:00:00")
    assert not made.run.exists()
    (left,) = stored.list_runs(["old-run"], f"tags.`{ARTIFACTS_TAG}` != ''")
    assert left.info.run_id == made.version.run_id


def test_nothing_is_deleted_outside_of_the_own_folder(
    make: Callable[[str], Made], stored: StoredRuns, tmp_path: Path
) -> None:
    make("foreign")
    (run,) = stored.list_runs(["foreign"], "")
    theirs = tmp_path / run.info.run_id / "artifacts"
    theirs.mkdir(parents=True)
    moved = replace(stored, artifacts=stored.artifacts.parent / "elsewhere")
    with pytest.raises(InputError, match="does not delete anything"):
        moved.remove_artifacts(run, "2026-01-01T00:00:00")
    run.info._artifact_uri = str(stored.artifacts)
    with pytest.raises(InputError, match="does not delete anything"):
        stored.remove_artifacts(run, "2026-01-01T00:00:00")
    link = stored.artifacts / run.info.run_id
    link.symlink_to(tmp_path / run.info.run_id)
    run.info._artifact_uri = str(link / "artifacts")
    with pytest.raises(InputError, match="does not delete anything"):
        stored.remove_artifacts(run, "2026-01-01T00:00:00")
    assert theirs.exists()
    link.unlink()
