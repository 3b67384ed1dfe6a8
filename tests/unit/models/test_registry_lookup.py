"""What is read without MLflow is what MLflow's own client reads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.registry_lookup import (
    KNOWN_SCHEMAS,
    LookupUnavailable,
    look_up_alias,
    look_up_version,
)
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import DIGEST_TAG, ModelVersion


@pytest.fixture
def model(mlflow_places: Installation, tmp_path: Path) -> Iterator[str]:
    """A model with two versions; the first is the champion."""
    store, name = client(mlflow_places.tracking_uri), f"looked-{tmp_path.name}"
    store.create_registered_model(name)
    for number in ("1", "2"):
        tags = {DIGEST_TAG: number * 8, "a b": "a'b\n%"}
        store.create_model_version(name, f"file:///{number}", run_id=None, tags=tags)
    store.set_registered_model_alias(name, "champion", "1")
    store.set_registered_model_alias(name, "a", "1")
    yield name
    store.delete_registered_model(name)


def asked(places: Installation, model: str, number: int) -> ModelVersion:
    """Return a version as MLflow's client describes it."""
    found = registry_of(places).version(model, number)
    return ModelVersion(**{**vars(found), "aliases": tuple(sorted(found.aliases))})


def test_a_version_is_as_mlflow_describes_it(mlflow_places: Installation, model: str) -> None:
    uri = mlflow_places.tracking_uri
    assert look_up_version(uri, model, 2) == asked(mlflow_places, model, 2)
    assert look_up_alias(uri, model, "champion") == asked(mlflow_places, model, 1)


def test_what_is_not_there_is_left_to_mlflow(mlflow_places: Installation, model: str) -> None:
    uri = mlflow_places.tracking_uri
    client(uri).delete_model_version(model, "2")
    for ask in (
        lambda: look_up_version(uri, model, 2),
        lambda: look_up_version(uri, "none", 1),
        lambda: look_up_alias(uri, model, "other"),
    ):
        with pytest.raises(LookupUnavailable):
            ask()


@pytest.mark.parametrize(
    "uri", ["postgresql://host/db", "sqlite:///{}/none.db", "http://127.0.0.1:9", "sqlite:///"]
)
def test_a_registry_that_cannot_be_read_is_left_to_mlflow(uri: str, tmp_path: Path) -> None:
    with pytest.raises(LookupUnavailable):
        look_up_alias(uri.format(tmp_path), "m", "champion")
    assert not list(tmp_path.iterdir())


def test_an_unknown_schema_is_left_to_mlflow(
    mlflow_places: Installation, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "millrace.models.registry.registry_lookup.KNOWN_SCHEMAS"
    monkeypatch.setattr(module, KNOWN_SCHEMAS - KNOWN_SCHEMAS)
    with pytest.raises(LookupUnavailable, match="unknown schema"):
        look_up_version(mlflow_places.tracking_uri, model, 1)
