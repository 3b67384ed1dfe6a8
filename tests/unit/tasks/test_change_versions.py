"""Promote, roll back and delete: from a terminal what MLflow's UI does."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client, tracked_run
from millrace.models.registry.version_files import CERTIFICATE_TAG, CHALLENGER, COMPARED_TAG
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release
from millrace.tasks.change_versions import delete_version, promote_version, roll_back
from tests.integration.planted import good, ingest_rows, plant


@pytest.fixture
def home(mlflow_places: Installation, tmp_path: Path) -> Installation:
    return replace(mlflow_places, tables_uri=str(tmp_path / "tables"))


@pytest.fixture
def register(home: Installation) -> Callable[[str], int]:
    """Return a function that registers a version without files, and returns its number."""

    def make(model: str) -> int:
        store = client(home.tracking_uri)
        with tracked_run(home, model, {}, system_metrics=False) as run:
            logged = store.create_logged_model(run.experiment_id, source_run_id=run.run_id)
        if not store.search_registered_models(f"name = '{model}'"):
            store.create_registered_model(model)
        source = f"models:/{logged.model_id}"
        made = store.create_model_version(model, source, run.run_id, model_id=logged.model_id)
        return int(made.version)

    return make


def released(home: Installation, model: str, *versions: int) -> None:
    for version in versions:
        ledger_of(home).append(Release(model=model, kind="live", version=version, digest="d"))


def champion(home: Installation, model: str) -> int:
    found = registry_of(home).by_alias(model, "champion")
    assert found is not None
    return found.version


def test_a_version_is_promoted_once(home: Installation, register: Callable[[str], int]) -> None:
    one, two = register("promoted"), register("promoted")
    assert promote_version(home, "promoted", one).before is None
    moved = promote_version(home, "promoted", two)
    assert (moved.version, moved.before, moved.changed) == (two, one, True)
    assert not promote_version(home, "promoted", two).changed
    assert champion(home, "promoted") == two


def test_the_challenger_is_promoted_where_no_version_is_named(
    home: Installation, register: Callable[[str], int]
) -> None:
    number = register("challenged")
    with pytest.raises(InputError, match="challenger"):
        promote_version(home, "challenged")
    registry = registry_of(home)
    registry.set_alias(registry.version("challenged", number), CHALLENGER)
    assert promote_version(home, "challenged").version == number


def test_a_version_that_failed_its_gates_is_not_promoted(
    home: Installation, register: Callable[[str], int]
) -> None:
    number, registry = register("failed"), registry_of(home)
    tags = {CERTIFICATE_TAG: "failed: accuracy fell"}
    registry.set_tags(registry.version("failed", number), tags)
    with pytest.raises(InputError, match="did not pass its gates") as refused:
        promote_version(home, "failed", number)
    assert refused.value.seen == "accuracy fell"
    assert registry.by_alias("failed", "champion") is None


def test_rolling_back_needs_no_release(home: Installation, register: Callable[[str], int]) -> None:
    one, two = register("rolled"), register("rolled")
    with pytest.raises(InputError, match="no champion"):
        roll_back(home, "rolled")
    promote_version(home, "rolled", one)
    with pytest.raises(InputError, match="no version is known"):
        roll_back(home, "rolled")
    promote_version(home, "rolled", two)
    assert roll_back(home, "rolled").version == one
    assert champion(home, "rolled") == one


def test_rolling_back_goes_to_what_clients_had(
    home: Installation, register: Callable[[str], int]
) -> None:
    one, two, three = (register("live") for _ in range(3))
    released(home, "live", one, two)
    promote_version(home, "live", two)
    assert roll_back(home, "live").version == one
    promote_version(home, "live", three)  # it is not live yet
    assert roll_back(home, "live").version == two


def test_what_is_needed_is_not_deleted(home: Installation, register: Callable[[str], int]) -> None:
    one, two, three = (register("deleted") for _ in range(3))
    promote_version(home, "deleted", two)
    with pytest.raises(InputError, match="needed") as refused:
        delete_version(home, "deleted", two, {})
    assert refused.value.seen == "alias champion"
    with pytest.raises(InputError, match="needed") as refused:
        delete_version(home, "deleted", one, {"named in a.yaml": "teacher: deleted/1"})
    assert refused.value.seen == "named in a.yaml"
    released(home, "deleted", three)
    with pytest.raises(InputError, match="needed") as refused:
        delete_version(home, "deleted", three, {})
    assert refused.value.seen == "live"


def test_a_version_is_deleted(home: Installation, register: Callable[[str], int]) -> None:
    one = register("gone")
    delete_version(home, "gone", one, {})
    with pytest.raises(InputError, match="no gone version"):
        delete_version(home, "gone", one, {})
    with pytest.raises(InputError, match="no gone version"):
        promote_version(home, "gone", one)


def test_how_it_compared_is_said_when_it_is_promoted(home: Installation) -> None:
    ingest_rows(home, "weighed")
    plant(home, "weighed", good(tags={COMPARED_TAG: "version 9: worse: …"}))
    assert promote_version(home, "weighed", 1).compared == "version 9: worse: …"


def test_what_a_release_would_refuse_is_said_when_it_is_promoted(home: Installation) -> None:
    ingest_rows(home, "required")
    plant(home, "required", good())
    plant(home, "required", good(pipeline={"promotion": {"require": {"approval": True}}}))
    assert promote_version(home, "required", 1).refusal is None
    assert "approv" in str(promote_version(home, "required", 2).refusal)
