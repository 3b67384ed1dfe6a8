"""What MLflow stored is read back before a version is registered, and kept if it passed."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mlflow.exceptions import MlflowException
from onnx import TensorProto, helper

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.registry.artifact_store import StoredFolder
from millrace.models.registry.mlflow_registry import Registry
from millrace.models.registry.signing import trust_of
from millrace.models.registry.tracking import TrackedRun, client, tracked_run
from millrace.models.registry.version_files import CERTIFICATE_TAG, FAILED, PASSED, ModelVersion
from millrace.tasks.kinds.graph.graph_files import save_graph

KIND = kind_named("graph")
ROWS = np.ones((2, 2), dtype=np.float32)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    value = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 2])
    answer = helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["rows", 2])
    node = helper.make_node("Mul", ["features", "features"], ["answers"])
    graph = helper.make_graph([node], "square", [value], [answer])
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.save_model(model, tmp_path / "model.onnx")
    (tmp_path / "encoding.json").write_text("{}")
    (tmp_path / "certificate.json").write_text("{}")
    (tmp_path / "pipeline.yaml").write_text("name: squares\n")
    np.savez(tmp_path / "golden.npz", features=ROWS, answers=ROWS)
    return {file.name: file for file in tmp_path.iterdir()}


@pytest.fixture(scope="module")
def run(mlflow_places: Installation) -> Iterator[TrackedRun]:
    with tracked_run(mlflow_places, "read-back", {}, system_metrics=False) as opened:
        yield opened


@pytest.fixture
def registry(mlflow_places: Installation, tmp_path: Path) -> Registry:
    return Registry(mlflow_places.tracking_uri, tmp_path / "cache", trust_of(mlflow_places))


def register(
    registry: Registry,
    run: TrackedRun,
    files: Mapping[str, Path],
    name: str,
    verdict: str = PASSED,
    save_model: Any = save_graph,
) -> ModelVersion:
    model = {"model.onnx": files["model.onnx"]}
    evidence = {each: files[each] for each in KIND.evidence_files}
    tags = {CERTIFICATE_TAG: verdict}
    return registry.register(run, name, KIND, model, evidence, tags, save_model, "# How good")


def test_a_version_that_passed_is_not_downloaded_again(
    registry: Registry,
    run: TrackedRun,
    files: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = register(registry, run, files, "kept")
    monkeypatch.setattr(StoredFolder, "fetch", None)
    package = registry.fetch(registry.version("kept", made.version))
    assert package.files["model.onnx"].read_bytes() == files["model.onnx"].read_bytes()
    assert package.text("pipeline.yaml") == "name: squares\n"


def test_a_version_that_failed_is_not_kept(
    registry: Registry, run: TrackedRun, files: Mapping[str, Path]
) -> None:
    register(registry, run, files, "refused", f"{FAILED}it is too slow")
    assert list(registry.cache.iterdir()) == []


def test_a_new_version_has_its_description(
    registry: Registry, run: TrackedRun, files: Mapping[str, Path]
) -> None:
    made = register(registry, run, files, "described")
    found = client(run.tracking_uri).get_model_version("described", str(made.version))
    assert found.description == "# How good"


@pytest.mark.parametrize("name", ["model.onnx", "extra_files/pipeline.yaml"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_files_that_mlflow_stored_otherwise_make_no_version(
    registry: Registry, run: TrackedRun, files: Mapping[str, Path], name: str, is_missing: bool
) -> None:
    def save_and_damage(model: Any, folder: Path, *given: Any) -> None:
        save_graph(model, folder, *given)
        if is_missing:
            (folder / name).unlink()
        else:
            (folder / name).write_text("other")

    with pytest.raises(WorkError, match="MLflow stored differ from the certified ones"):
        register(registry, run, files, "damaged", save_model=save_and_damage)
    with pytest.raises(MlflowException, match="not found"):
        client(run.tracking_uri).get_registered_model("damaged")
    assert list(registry.cache.iterdir()) == []


def test_evidence_that_no_release_could_read_makes_no_version(
    registry: Registry, run: TrackedRun, files: Mapping[str, Path]
) -> None:
    files["encoding.json"].write_text("{")
    with pytest.raises(WorkError, match="the new version of unread cannot be read") as told:
        register(registry, run, files, "unread")
    assert str(told.value.seen).startswith("encoding.json")
