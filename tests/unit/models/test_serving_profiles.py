"""A serving profile is signed for one version, and is read back only as it was stored."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.serving_profiles import (
    FILE,
    GOAL_TAG,
    PROFILE_TAG,
    TIMES_FILE,
    read_profile,
    read_times,
    store_profile,
    store_times,
)
from millrace.models.registry.signing import SigningKeys, Trust
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import ModelVersion
from tests.integration.planted import good, plant

Store = Callable[..., ModelVersion]


@pytest.fixture
def registry(mlflow_places: Installation) -> Registry:
    return registry_of(mlflow_places)


@pytest.fixture
def store(mlflow_places: Installation, registry: Registry, request: Any) -> Store:
    """Return what stores a profile of version 1 or 2 of a model of the test's own."""
    name = request.node.name
    for seed in (0, 1):
        plant(mlflow_places, name, good(seed))

    def stored(text: str | None = '{"a": 1}', number: int = 1) -> ModelVersion:
        if text is not None:
            store_profile(registry, registry.version(name, number), text, "met at 3 requests/s")
        return registry.version(name, number)

    return stored


def file_of(version: ModelVersion) -> Path:
    return Path(urlsplit(version.source).path, "extra_files", FILE)


def test_a_profile_is_read_as_it_was_stored_and_a_newer_one_replaces_it(
    registry: Registry, store: Store
) -> None:
    assert read_profile(registry, store(None)) is None
    version = store()
    assert read_profile(registry, version) == '{"a": 1}'
    assert version.tags[GOAL_TAG] == "met at 3 requests/s"
    assert read_profile(registry, store('{"a": 2}')) == '{"a": 2}'
    assert read_profile(registry, store(None, 2)) is None


def test_the_version_itself_is_still_whole_and_signed(registry: Registry, store: Store) -> None:
    assert registry.fetch(store()).untrusted == ""


def test_a_changed_profile_is_refused(registry: Registry, store: Store) -> None:
    version = store()
    file_of(version).write_text('{"a": 3}')
    with pytest.raises(InputError, match="cannot be used"):
        read_profile(registry, version)
    file_of(version).write_text('{"a": 1}')
    assert read_profile(registry, version) == '{"a": 1}'


def test_a_profile_of_another_version_is_refused(registry: Registry, store: Store) -> None:
    one, other = store(), store('{"a": 9}', 2)
    registry.set_tags(other, {PROFILE_TAG: one.tags[PROFILE_TAG]})
    with pytest.raises(InputError, match="cannot be used"):
        read_profile(registry, store(None, 2))


def test_a_profile_of_another_home_is_refused(
    registry: Registry, store: Store, tmp_path: Path
) -> None:
    version = store()
    elsewhere = replace(registry, trust=Trust(SigningKeys(tmp_path)))
    with pytest.raises(InputError, match="cannot be used") as refused:
        read_profile(elsewhere, version)
    assert "a key that this home does not trust" in str(refused.value.seen)


def test_a_file_that_is_gone_or_too_large_is_refused(registry: Registry, store: Store) -> None:
    version = store()
    file_of(version).write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(InputError) as refused:
        read_profile(registry, version)
    assert "1,048,577 bytes" in str(refused.value.seen)
    file_of(version).unlink()
    with pytest.raises(InputError) as refused:
        read_profile(registry, version)
    assert refused.value.seen == "no such file"


def test_other_service_times_are_refused(registry: Registry, store: Store) -> None:
    version = store()
    digest = store_times(registry, version, "[1]")
    assert read_times(registry, version, digest) == "[1]"
    newer = store_times(registry, version, "[2]")
    assert read_times(registry, version, newer) == "[2]"
    file_of(version).with_name(TIMES_FILE).write_text("[3]")
    with pytest.raises(InputError, match="cannot be used"):
        read_times(registry, version, "0" * 64)


def test_a_section_of_the_page_is_replaced_and_the_rest_stays(
    registry: Registry, store: Store
) -> None:
    version = store()
    registry.replace_section(version, "### Card", "### Card\n\none")
    registry.describe(version, "before")
    for text in ("one", "two"):
        registry.replace_section(version, "### Card", f"### Card\n\n{text}")
    found = client(registry.tracking_uri).get_model_version(version.model, str(version.version))
    assert found.description == "before\n\n### Card\n\ntwo"
