"""Language models in the registry: the files of a variant, with their evidence."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from mlflow.artifacts import download_artifacts

from millrace.models.common.digest import digest_of, digest_of_model
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.signing import trust_of
from millrace.models.registry.tracking import TrackedRun, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.graph.graph_files import graph_files
from millrace.tasks.kinds.language.language_files import language_files, save_language_model

FILES = {"openvino_model.xml": "<net/>", "openvino_model.bin": "weights", "config.json": "{}"}
EVIDENCE = {
    "certificate.json": '{"passed": true}',
    "golden.json": '{"prompts": ["def "]}',
    "pipeline.yaml": "name: writes\n",
}


def written(folder: Path, contents: Mapping[str, str]) -> dict[str, Path]:
    for name, text in contents.items():
        (folder / name).write_text(text)
    return {name: folder / name for name in contents}


@pytest.fixture(scope="module")
def run(mlflow_places: Installation) -> Iterator[TrackedRun]:
    with tracked_run(mlflow_places, "writes", {}, system_metrics=False) as opened:
        yield opened


@pytest.fixture
def registry(mlflow_places: Installation, tmp_path: Path) -> Registry:
    return Registry(mlflow_places.tracking_uri, tmp_path / "cache", trust_of(mlflow_places))


@pytest.fixture
def writes(registry: Registry, run: TrackedRun, tmp_path: Path) -> ModelVersion:
    (tmp_path / "form").mkdir()
    files = written(tmp_path / "form", FILES)
    extra = written(tmp_path, EVIDENCE)
    kind, tags = kind_named("language"), {"color": "red"}
    return registry.register(run, "writes", kind, files, extra, tags, save_language_model)


@pytest.fixture
def stored(writes: ModelVersion, registry: Registry, mlflow_places: Installation) -> Path:
    uri = f"models:/{writes.model}/{writes.version}"
    return Path(download_artifacts(uri, tracking_uri=mlflow_places.tracking_uri))


def test_a_form_is_known_by_all_of_its_files(writes: ModelVersion, tmp_path: Path) -> None:
    digests = {name: digest_of(tmp_path / "form" / name) for name in FILES}
    assert writes.digest == digest_of_model(digests)
    assert writes.kind is kind_named("language")
    assert writes.tags["color"] == "red"


def test_a_fetched_form_has_its_files_and_its_evidence(
    writes: ModelVersion, registry: Registry
) -> None:
    package = registry.fetch(registry.version("writes", writes.version))
    files = language_files(package)
    assert files.version == package.version
    assert {file.parent for file in package.files.values()} == {files.folder}
    assert {name: file.read_text() for name, file in package.files.items()} == FILES
    assert files.golden() == json.loads(EVIDENCE["golden.json"])
    assert package.text("pipeline.yaml") == EVIDENCE["pipeline.yaml"]


def test_mlflow_is_told_what_it_is_and_pickles_nothing(stored: Path) -> None:
    told = yaml.safe_load((stored / "MLmodel").read_text())
    assert told["flavors"] == {
        "openvino_genai": {"folder": "form", "files": sorted(FILES)},
    }
    assert not list(stored.rglob("*.pkl"))


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_file_of_a_form_that_was_changed_is_refused(
    writes: ModelVersion, registry: Registry, stored: Path, name: str
) -> None:
    (stored / "form" / name).write_text("other")
    with pytest.raises(InputError, match="is not the file that was registered"):
        registry.fetch(writes)
    assert not (registry.cache / "writes").exists()


def test_a_file_that_was_put_beside_them_is_refused(
    writes: ModelVersion, registry: Registry, stored: Path
) -> None:
    (stored / "form" / "more.bin").write_text("more")
    with pytest.raises(InputError, match="is not the file that was registered"):
        registry.fetch(writes)


def test_more_files_than_any_form_has_are_refused_before_they_are_fetched(
    writes: ModelVersion, registry: Registry, stored: Path
) -> None:
    for number in range(1000):
        (stored / "form" / f"{number}.bin").touch()
    with pytest.raises(InputError, match="more or larger files than any version"):
        registry.fetch(writes)


def test_a_link_among_them_is_not_followed(
    writes: ModelVersion, registry: Registry, stored: Path
) -> None:
    (stored / "form" / "config.json").unlink()
    (stored / "form" / "config.json").symlink_to("/etc/hostname")
    with pytest.raises(MillraceError, match=f"writes version {writes.version}"):
        registry.fetch(writes)


def test_evidence_that_was_changed_is_refused(
    writes: ModelVersion, registry: Registry, stored: Path
) -> None:
    (stored / "extra_files" / "golden.json").write_text("{}")
    with pytest.raises(InputError, match="is not the file") as told:
        registry.fetch(writes)
    assert "its evidence" in str(told.value.seen)


def test_a_damaged_copy_is_fetched_again(writes: ModelVersion, registry: Registry) -> None:
    registry.fetch(writes).files["config.json"].write_text("damaged")
    assert registry.fetch(writes).files["config.json"].read_text() == FILES["config.json"]


def test_a_language_model_is_no_graph(writes: ModelVersion, registry: Registry) -> None:
    with pytest.raises(InputError, match="is a language model"):
        graph_files(registry.fetch(writes))


def test_a_form_that_is_called_a_graph_is_refused(writes: ModelVersion, registry: Registry) -> None:
    with pytest.raises(InputError):
        registry.fetch(replace(writes, tags={**writes.tags, "millrace.kind": "graph"}))


def test_a_version_without_its_folder_is_refused(
    writes: ModelVersion, registry: Registry, stored: Path
) -> None:
    shutil.rmtree(stored / "form")
    with pytest.raises(InputError):
        registry.fetch(writes)
