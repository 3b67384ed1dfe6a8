import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from onnx import TensorProto, helper

from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.common.external_errors import is_disk_error
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry import mlflow_registry
from millrace.models.registry.artifact_store import StoredFolder
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.signing import SigningKeys, Trust, trust_of
from millrace.models.registry.tracking import TrackedRun, client, tracked_run
from millrace.models.registry.version_files import (
    CHALLENGER,
    CHAMPION,
    DIGEST_TAG,
    KIND_TAG,
    ModelVersion,
)
from millrace.tasks.kinds.graph.graph_files import graph_files, save_graph
from millrace.tasks.kinds.language.language_files import language_files

KIND = kind_named("graph")
ENCODING = Encoding((Feature("v", "vector", width=2),), "t", ("no", "yes"))
GOLDEN = np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32)


def write_model(path: Path) -> Path:
    """Write a model that squares its input."""
    shape = ["rows", 2]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["features", "features"], ["probabilities"])],
        "square",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, shape)],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "encoding.json").write_text(ENCODING.to_json())
    (folder / "certificate.json").write_text('{"passed": true}')
    (folder / "pipeline.yaml").write_text("name: squares\n")
    np.savez(folder / "golden.npz", features=GOLDEN, answers=GOLDEN**2)
    write_model(folder / "model.onnx")
    return {file.name: file for file in folder.iterdir()}


@pytest.fixture(scope="module")
def run(mlflow_places: Installation) -> Iterator[TrackedRun]:
    with tracked_run(mlflow_places, "squares", {}, system_metrics=False) as opened:
        yield opened


@pytest.fixture
def registry(mlflow_places: Installation, tmp_path: Path) -> Registry:
    return Registry(mlflow_places.tracking_uri, tmp_path / "cache", trust_of(mlflow_places))


def register(
    mlflow_places: Installation, run: TrackedRun, evidence: dict[str, Path], model: str
) -> ModelVersion:
    files = {"model.onnx": evidence["model.onnx"]}
    beside = {name: evidence[name] for name in KIND.evidence_files}
    cache = mlflow_places.home / "cache"
    registry = Registry(mlflow_places.tracking_uri, cache, trust_of(mlflow_places))
    return registry.register(run, model, KIND, files, beside, {"color": "blue"}, save_graph)


@pytest.fixture(scope="module")
def squares(
    mlflow_places: Installation, run: TrackedRun, evidence: dict[str, Path]
) -> ModelVersion:
    return register(mlflow_places, run, evidence, "squares")


@pytest.fixture
def stored(
    squares: ModelVersion, registry: Registry, mlflow_places: Installation
) -> Iterator[Path]:
    """The folder of the registered model in the artifact store, as it was again afterwards."""
    found = client(registry.tracking_uri).get_model_version(squares.model, str(squares.version))
    model_id = found.source.rpartition("/")[2]
    (folder,) = mlflow_places.artifacts.glob(f"**/{model_id}/artifacts")
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
    kept.rename(folder)


def test_a_registered_model_is_version_1_with_its_digest(
    squares: ModelVersion, evidence: dict[str, Path]
) -> None:
    assert squares.version == 1
    assert squares.digest == digest_of(evidence["model.onnx"])


def test_the_digest_is_a_tag_beside_the_given_ones(
    squares: ModelVersion, registry: Registry
) -> None:
    tags = registry.version("squares", squares.version).tags
    assert (tags[DIGEST_TAG], tags["color"]) == (squares.digest, "blue")


def test_a_version_has_its_kind(squares: ModelVersion, registry: Registry) -> None:
    found = registry.version("squares", squares.version)
    assert (found.tags[KIND_TAG], found.kind) == ("graph", KIND)


def test_a_version_of_before_there_were_kinds_is_a_graph(
    squares: ModelVersion, registry: Registry
) -> None:
    tags = {name: value for name, value in squares.tags.items() if name != KIND_TAG}
    before = replace(squares, tags=tags)
    assert before.kind is KIND
    assert graph_files(registry.fetch_to_sign(before)).encoding == ENCODING


def test_a_version_of_a_kind_that_is_not_known_is_refused(
    squares: ModelVersion, registry: Registry
) -> None:
    later = replace(squares, tags={**squares.tags, KIND_TAG: "video"})
    with pytest.raises(InputError, match="not know the model kind 'video'") as told:
        registry.fetch_to_sign(later)
    assert told.value.valid == "graph, language, gradient_boosting"


def test_a_graph_is_no_language_model(squares: ModelVersion, registry: Registry) -> None:
    with pytest.raises(InputError, match="squares version 1 is not a language model"):
        language_files(registry.fetch(squares))


def test_a_version_names_the_run_that_made_it(squares: ModelVersion, run: TrackedRun) -> None:
    assert squares.run_id == run.run_id


def test_a_model_belongs_to_the_run_it_is_given_whichever_is_active(
    mlflow_places: Installation, run: TrackedRun, evidence: dict[str, Path]
) -> None:
    made = run.client.create_run(run.experiment_id)
    other = TrackedRun(run.tracking_uri, run.experiment_id, made.info.run_id)
    register(mlflow_places, other, evidence, "other")
    (logged,) = other.client.get_run(other.run_id).outputs.model_outputs
    assert other.client.get_logged_model(logged.model_id).source_run_id == other.run_id


def test_registering_again_makes_the_next_version(
    mlflow_places: Installation, run: TrackedRun, evidence: dict[str, Path]
) -> None:
    numbers = [register(mlflow_places, run, evidence, "twice").version for _ in range(2)]
    assert numbers == [1, 2]


def test_a_version_is_found_by_its_alias(squares: ModelVersion, registry: Registry) -> None:
    registry.set_alias(squares, CHALLENGER)
    found = registry.by_alias("squares", CHALLENGER)
    assert found is not None
    assert (found.version, found.digest) == (squares.version, squares.digest)
    assert CHALLENGER in found.aliases


@pytest.mark.parametrize(("model", "alias"), [("squares", "nobody"), ("nothing", CHAMPION)])
def test_an_alias_or_a_model_that_is_not_there_is_none(
    squares: ModelVersion, registry: Registry, model: str, alias: str
) -> None:
    assert registry.by_alias(model, alias) is None


def test_an_alias_moves(
    mlflow_places: Installation, run: TrackedRun, evidence: dict[str, Path], registry: Registry
) -> None:
    first, second = (register(mlflow_places, run, evidence, "moves") for _ in range(2))
    for version in (first, second, first):
        registry.set_alias(version, CHAMPION)
    found = registry.by_alias("moves", CHAMPION)
    assert found is not None
    assert found.version == first.version


def test_champions_are_the_models_with_that_alias(
    mlflow_places: Installation,
    run: TrackedRun,
    evidence: dict[str, Path],
    squares: ModelVersion,
    registry: Registry,
) -> None:
    crowned = register(mlflow_places, run, evidence, "crowned")
    registry.set_alias(crowned, CHAMPION)
    champions = registry.champions()
    assert champions["crowned"].version == crowned.version
    assert "squares" not in champions


def test_a_version_that_is_not_there_is_told(squares: ModelVersion, registry: Registry) -> None:
    with pytest.raises(InputError, match="no squares version 99"):
        registry.version("squares", 99)


def test_a_registry_that_fails_is_no_missing_version(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def fail(*_: object) -> None:
        raise MlflowException("the database is locked")

    monkeypatch.setattr(MlflowClient, "get_model_version", fail)
    with pytest.raises(TransientError, match="registry failed"):
        registry.version("squares", 1)


def test_champions_that_may_not_be_listed_are_told_with_a_way_on(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def deny(*_: object, **__: object) -> None:
        raise MlflowException("Permission denied", error_code=PERMISSION_DENIED)

    monkeypatch.setattr(MlflowClient, "search_registered_models", deny)
    with pytest.raises(WorkError, match="the champions cannot be listed") as told:
        registry.champions()
    assert told.value.seen == "PERMISSION_DENIED: Permission denied"
    assert "the permissions of the login" in (told.value.hint or "")
    assert not told.value.transient


def test_a_version_that_was_made_twice_is_there_once(
    mlflow_places: Installation,
    run: TrackedRun,
    evidence: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """MLflow's client sends a request again that was not answered in time."""
    from mlflow import MlflowClient

    create = MlflowClient.create_model_version

    def sent_twice(*given: Any, **named: Any) -> Any:
        create(*given, **named)
        return create(*given, **named)

    monkeypatch.setattr(MlflowClient, "create_model_version", sent_twice)
    monkeypatch.setattr(mlflow_registry, "sends_requests", lambda _uri: True)
    made = register(mlflow_places, run, evidence, "unheard")
    store = client(mlflow_places.tracking_uri)
    assert made.version == 2
    assert [int(each.version) for each in store.search_model_versions("name='unheard'")] == [2]


def test_tags_are_set_as_text(squares: ModelVersion, registry: Registry) -> None:
    registry.set_tags(squares, {"live": 3})
    assert registry.version("squares", squares.version).tags["live"] == "3"


def test_a_fetched_package_holds_the_model_and_its_evidence(
    squares: ModelVersion, registry: Registry, evidence: dict[str, Path]
) -> None:
    package = registry.fetch(squares)
    files = graph_files(package)
    assert files.version == package.version
    assert files.model.read_bytes() == evidence["model.onnx"].read_bytes()
    assert files.encoding == ENCODING
    assert package.text("pipeline.yaml") == "name: squares\n"


def test_a_fetched_package_holds_the_golden_batch(
    squares: ModelVersion, registry: Registry
) -> None:
    features, answers = graph_files(registry.fetch(squares)).golden()
    np.testing.assert_array_equal(features, GOLDEN)
    np.testing.assert_array_equal(answers, GOLDEN**2)


def test_a_version_is_fetched_from_the_store_once(
    squares: ModelVersion, registry: Registry, stored: Path
) -> None:
    first = registry.fetch(squares)
    shutil.rmtree(stored)
    assert registry.fetch(squares) == first


def test_only_the_package_is_left_in_the_cache(squares: ModelVersion, registry: Registry) -> None:
    package = registry.fetch(squares)
    assert list(registry.cache.iterdir()) == [package.folder.parent]
    assert {file.name for file in package.folder.iterdir()} == {"model.onnx", *KIND.evidence_files}


def test_a_file_that_was_changed_in_the_store_is_refused(
    squares: ModelVersion, registry: Registry, stored: Path
) -> None:
    with (stored / "model.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError, match="is not the file that was registered"):
        registry.fetch(squares)


@pytest.mark.parametrize("name", KIND.evidence_files)
def test_evidence_that_was_changed_is_refused(
    squares: ModelVersion, registry: Registry, stored: Path, name: str
) -> None:
    with (stored / "extra_files" / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(InputError, match="is not the file that was registered") as told:
        registry.fetch(squares)
    assert "of its evidence" in str(told.value)


def test_a_broken_download_is_not_kept(
    squares: ModelVersion, registry: Registry, stored: Path, evidence: dict[str, Path]
) -> None:
    with (stored / "model.onnx").open("ab") as file:
        file.write(b"more")
    with pytest.raises(InputError):
        registry.fetch(squares)
    shutil.copyfile(evidence["model.onnx"], stored / "model.onnx")
    assert digest_of(graph_files(registry.fetch(squares)).model) == squares.digest


def test_a_file_that_was_damaged_in_the_cache_is_fetched_again(
    squares: ModelVersion, registry: Registry
) -> None:
    graph_files(registry.fetch(squares)).model.write_bytes(b"other")
    assert digest_of(graph_files(registry.fetch(squares)).model) == squares.digest


@pytest.mark.parametrize("name", ["model.onnx", "extra_files/encoding.json"])
def test_a_version_that_lacks_a_file_is_refused(
    squares: ModelVersion, registry: Registry, stored: Path, name: str
) -> None:
    (stored / name).unlink()
    with pytest.raises(InputError, match=f"has no {Path(name).name}"):
        registry.fetch(squares)


def test_a_link_in_place_of_a_file_is_not_followed(
    squares: ModelVersion, registry: Registry, stored: Path, evidence: dict[str, Path]
) -> None:
    (stored / "model.onnx").unlink()
    (stored / "model.onnx").symlink_to(evidence["model.onnx"])
    with pytest.raises(MillraceError, match="squares version 1"):
        registry.fetch(squares)
    assert list(registry.cache.iterdir()) == []


@pytest.mark.parametrize("end", ["/dev/zero", "a pipe"])
def test_what_never_ends_is_not_read(
    squares: ModelVersion, registry: Registry, stored: Path, end: str
) -> None:
    file = stored / "model.onnx"
    file.unlink()
    if end == "a pipe":
        os.mkfifo(file)
    else:
        file.symlink_to(end)
    with pytest.raises(InputError, match="cannot be fetched") as told:
        registry.fetch(squares)
    assert told.value.seen == "model.onnx is not a plain file"
    assert list(registry.cache.iterdir()) == []


def forbid_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(*_: object) -> None:
        raise AssertionError("it was fetched")

    monkeypatch.setattr(StoredFolder, "fetch", fetch)


@pytest.fixture
def nothing_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_copies(monkeypatch)


@pytest.mark.parametrize(
    ("name", "size"), [("model.onnx", 1 << 31), ("extra_files/golden.npz", (1 << 30) + 1)]
)
@pytest.mark.usefixtures("nothing_is_copied")
def test_a_file_that_is_larger_than_any_of_ours_is_refused_before_it_is_fetched(
    squares: ModelVersion, registry: Registry, stored: Path, name: str, size: int
) -> None:
    os.truncate(stored / name, size)
    with pytest.raises(InputError, match="more or larger files than any version") as told:
        registry.fetch(squares)
    assert told.value.seen == f"{name} of {size:,} bytes"


@pytest.mark.usefixtures("nothing_is_copied")
def test_a_version_that_the_disk_has_no_room_for_is_a_fault_of_the_disk(
    squares: ModelVersion, registry: Registry, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(stored)._replace(total=20 << 20, free=(1 << 20) + 100)
    monkeypatch.setattr("millrace.models.registry.artifact_store.shutil.disk_usage", lambda _: free)
    with pytest.raises(
        WorkError, match="too little free space for the files of squares version 1"
    ) as told:
        registry.fetch(squares)
    assert told.value.valid == f"at most 100 bytes, which are free on the disk of {registry.cache}"
    assert not told.value.transient
    assert is_disk_error(told.value)


def test_files_that_no_version_of_ours_has_are_left_where_they_are(
    squares: ModelVersion, registry: Registry, stored: Path
) -> None:
    for name in ("more", "extra_files/more", "extra_files/encoding.json.bak"):
        (stored / name).touch()
        os.truncate(stored / name, 1 << 42)
    package = registry.fetch(squares)
    assert {file.name for file in package.folder.iterdir()} == {"model.onnx", *KIND.evidence_files}


def test_the_number_of_a_version_that_was_made_again_elsewhere_is_refused_before_it_is_fetched(
    mlflow_places: Installation,
    run: TrackedRun,
    evidence: dict[str, Path],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = register(mlflow_places, run, evidence, "again")
    store = client(registry.tracking_uri)
    other = register(mlflow_places, run, evidence, "elsewhere")
    store.delete_registered_model("again")
    store.create_registered_model("again")
    again = store.create_model_version("again", other.source, made.run_id, tags=dict(made.tags))
    assert int(again.version) == made.version
    forbid_copies(monkeypatch)
    monkeypatch.setattr(StoredFolder, "sizes", StoredFolder.fetch)  # nor looked at
    with pytest.raises(InputError, match="its signature is for something else"):
        registry.fetch(registry.version("again", 1))


def test_a_version_without_a_digest_is_refused(squares: ModelVersion, registry: Registry) -> None:
    store = client(registry.tracking_uri)
    store.create_registered_model("foreign")
    made = store.create_model_version("foreign", "/somewhere/model")
    with pytest.raises(InputError, match="foreign version 1 is not trusted: it has no digest"):
        registry.fetch(registry.version("foreign", int(made.version)))


def test_another_digest_is_another_package(squares: ModelVersion, registry: Registry) -> None:
    registry.fetch(squares)
    with pytest.raises(InputError, match="is not the file that was registered"):
        registry.fetch(replace(squares, digest="0" * 64))


@pytest.mark.parametrize(
    "ask",
    [
        lambda registry: registry.champions(),
        lambda registry: registry.by_alias("m", CHAMPION),
        lambda registry: registry.version("m", 1),
    ],
)
def test_an_mlflow_that_is_not_there_is_told_at_once(
    ask: Callable[[Registry], object], tmp_path: Path
) -> None:
    with pytest.raises(TransientError, match="MLflow cannot be reached"):
        ask(Registry("http://127.0.0.1:9", tmp_path, Trust(SigningKeys(tmp_path))))


def test_a_name_is_looked_up_once_whatever_is_tagged(
    mlflow_places: Installation,
    run: TrackedRun,
    evidence: dict[str, Path],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mlflow import MlflowClient

    made = register(mlflow_places, run, evidence, "tagged")
    asked: list[str] = []
    look_up = MlflowClient.get_registered_model

    def counted(self: MlflowClient, name: str) -> Any:
        asked.append(name)
        return look_up(self, name)

    monkeypatch.setattr(MlflowClient, "get_registered_model", counted)
    registry.set_tags(made, {"a": 1, "b": 2})
    registry.set_alias(made, "challenger")
    assert asked == []
    assert registry.by_alias("tagged", "challenger") is not None


def test_the_name_of_a_prompt_is_refused(mlflow_places: Installation) -> None:
    from mlflow.exceptions import MlflowException

    store = client(mlflow_places.tracking_uri)
    store.register_prompt("greeting", "Hello {{name}}")
    with pytest.raises(MlflowException, match="greeting"):
        store.set_model_version_tag("greeting", "1", "a", "b")
