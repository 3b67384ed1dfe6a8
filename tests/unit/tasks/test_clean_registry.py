from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.registry.tracking import client, tracked_run
from millrace.models.registry.version_removal import Removal
from millrace.serving.release.release_state import Release, ReleaseState
from millrace.tasks.retention.clean_pipeline import PipelineCleaner
from millrace.tasks.retention.clean_registry import RegistryCleaner
from millrace.tasks.retention.cleaned import Cleaned
from millrace.tasks.retention.needed_versions import find_named, find_released

LATER = datetime.now(UTC) + timedelta(days=3)


@pytest.fixture
def shared(mlflow_places: Installation, tmp_path: Path) -> Installation:
    return replace(mlflow_places, tables_uri=str(tmp_path / "tables"))


@pytest.fixture
def register(shared: Installation) -> Callable[..., str]:
    """Return a function that registers a version in a run, and returns the run's id."""

    def make(model: str, **parameters: object) -> str:
        with tracked_run(shared, model, {}, system_metrics=False) as run:
            run.log_params(parameters)
            run.log_text("what was trained", "notes.txt")
            register_in(run.run_id, run.experiment_id, model)
        return run.run_id

    def register_in(run: str, experiment: str, model: str) -> None:
        store = client(shared.tracking_uri)
        logged = store.create_logged_model(experiment, source_run_id=run)
        if not store.search_registered_models(f"name = '{model}'"):
            store.create_registered_model(model)
        store.create_model_version(
            model, f"models:/{logged.model_id}", run, model_id=logged.model_id
        )

    return make


def clean(
    model: str, home: Installation, *, dry_run: bool = False, **retention: int
) -> dict[str, Cleaned]:
    values = {"name": model, "dataset": {"source": "x.csv", "target": "y"}, "retention": retention}
    pipeline = Pipeline.model_validate(values)
    found = PipelineCleaner(pipeline, home, LATER, {}, dry_run).clean()
    return {each.kind: each for each in found}


def notes_of(run: str, home: Installation) -> Path:
    uri = client(home.tracking_uri).get_run(run).info.artifact_uri
    return Path(urlsplit(uri).path, "notes.txt")


def test_what_serving_needs_is_named() -> None:
    state = ReleaseState(live=Release("m", "live", 4), superseded=3, step=Release("m", "step", 5))
    assert find_released(state) == {
        3: "served before the live version",
        4: "live",
        5: "in a rollout",
    }


def test_what_a_file_names_is_needed() -> None:
    text = (
        "pretrained: models:/m/3\nteacher: m/41 # and\ncompare: 'm/5'\nsource: a/m/6, m/7/x, xm/8"
    )
    assert find_named({"named in a.yaml": text}, "m") == {
        3: "named in a.yaml",
        41: "named in a.yaml",
        5: "named in a.yaml",
    }
    assert find_named({"named in a.yaml": '{"teacher":"m.x/3"}'}, "m.x") == {3: "named in a.yaml"}
    assert find_named({"named in a.yaml": "m@champion models:/mm/3 m-m/4"}, "m") == {}


def test_a_version_that_got_an_alias_meanwhile_keeps_its_evidence(
    shared: Installation, register: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = register("late-alias"), register("late-alias")
    store = client(shared.tracking_uri)
    remove = Removal.remove_version

    def set_alias_first(self: Removal, *arguments: object) -> bool:
        store.set_registered_model_alias("late-alias", "champion", "1")
        return remove(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Removal, "remove_version", set_alias_first)
    found = clean("late-alias", shared, versions=1, artifacts=1)
    assert found["versions"].removed == ()
    assert found["versions"].kept == {"version 1": "needed by now", "version 2": "recent"}
    assert found["artifacts"].removed == ()
    assert notes_of(first, shared).exists()
    assert notes_of(second, shared).exists()


def test_a_version_whose_run_has_not_ended_stays(
    shared: Installation, register: Callable[..., str]
) -> None:
    first, _ = register("open"), register("open")
    store = client(shared.tracking_uri)
    store.update_run(first, status="RUNNING")
    kept = clean("open", shared, versions=1)["versions"].kept
    assert kept == {"version 1": "its run has not ended", "version 2": "recent"}
    store.update_run(first, status="FINISHED")
    assert clean("open", shared, versions=1)["versions"].removed == ("version 1",)


def test_the_teacher_of_a_running_training_stays(
    shared: Installation, register: Callable[..., str]
) -> None:
    register("teacher")
    register("teacher")
    student = register("student", teacher="teacher/1")
    store = client(shared.tracking_uri)
    store.update_run(student, status="RUNNING")
    kept = clean("teacher", shared, versions=1)["versions"].kept
    assert kept["version 1"] == "a running training uses it"
    store.update_run(student, status="FINISHED")
    named = {"named in student.yaml": "teacher: teacher/1"}
    cleaner = RegistryCleaner.read("teacher", RetentionSpec(versions=1), shared, named)
    assert cleaner.clean_versions(dry_run=True).kept["version 1"] == "named in student.yaml"


def test_a_version_that_cannot_be_removed_does_not_keep_others(
    shared: Installation, register: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        register("one-bad")
    delete = Removal._delete
    bad: list[str] = []

    def fail_once(self: Removal, location: str) -> None:
        bad.append(location)
        if len(bad) == 1:
            raise WorkError("the artifact store failed", seen="503")
        delete(self, location)

    monkeypatch.setattr(Removal, "_delete", fail_once)
    found = clean("one-bad", shared, versions=1)["versions"]
    assert found.removed == ("version 2",)
    assert found.skipped == ("the artifact store failed: 503",)
    assert clean("one-bad", shared, versions=1)["versions"].skipped == ()
    assert bad.count(bad[0]) == 2  # the next `clean` has deleted the files that were left
