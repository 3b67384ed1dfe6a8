from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from millrace.models.common.digest import digest_of, digest_of_model
from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.graph.triton_graph import artifact_of_graph, signature_of
from millrace.serving.triton.model_config import model_config, specific
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_folder import (
    ONNX,
    Artifact,
    found_in,
    is_whole,
    read_version,
    write_version,
)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for name in ("repository", "staging"):
        (tmp_path / name).mkdir()
    return Repository(tmp_path / "repository", tmp_path / "staging")


def linear(path: Path, weight: float = 1.0, **save: object) -> Artifact:
    weights = np.full((300, 3), weight, np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 300])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    onnx.save(helper.make_model(graph), path, **save)
    return artifact_of_graph(path, digest_of(path), labels=("a", "b", "c"))


def test_a_staged_version_is_listed_with_what_it_is(repository, tmp_path) -> None:
    artifact = replace(linear(tmp_path / "m.onnx"), serving=ServingSpec(instance_count=2))
    assert repository.stage("m", 7, artifact)
    assert repository.versions() == {"m": (7,)}
    assert repository.artifact("m", 7) == replace(
        artifact, files={ONNX: repository.root / "m/7/model.onnx"}
    )


def test_staging_the_same_again_does_nothing(repository, tmp_path) -> None:
    artifact = linear(tmp_path / "m.onnx")
    repository.stage("m", 1, artifact)
    before = (repository.root / "m/1").stat().st_mtime_ns
    assert not repository.stage("m", 1, artifact)
    assert (repository.root / "m/1").stat().st_mtime_ns == before


def test_a_version_never_changes(repository, tmp_path) -> None:
    repository.stage("m", 1, linear(tmp_path / "m.onnx"))
    with pytest.raises(WorkError, match="with other contents"):
        repository.stage("m", 1, linear(tmp_path / "n.onnx", weight=2.0))


def test_a_wrong_digest_leaves_nothing_behind(repository, tmp_path) -> None:
    artifact = replace(linear(tmp_path / "m.onnx"), sha256="0" * 64)
    with pytest.raises(WorkError, match="not the file that was registered"):
        repository.stage("m", 1, artifact)
    assert repository.versions() == {}
    assert not list(repository.staging.iterdir())


def test_external_data_is_refused(repository, tmp_path) -> None:
    artifact = linear(tmp_path / "m.onnx", save_as_external_data=True, location="weights")
    with pytest.raises(InputError, match="weights of model.onnx are in other files"):
        repository.stage("m", 1, artifact)


def test_external_data_in_a_subgraph_is_refused(repository, tmp_path) -> None:
    hidden = TensorProto(name="hidden", data_location=TensorProto.EXTERNAL, data_type=1)
    branch = helper.make_graph([helper.make_node("Constant", [], ["c"], value=hidden)], "b", [], [])
    artifact = linear(tmp_path / "m.onnx")
    model = onnx.load(artifact.files[ONNX])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=branch))
    artifact.files[ONNX].write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="in other files"):
        repository.stage("m", 1, replace(artifact, sha256=digest_of(artifact.files[ONNX])))


def test_what_is_not_onnx_is_refused(repository, tmp_path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"junk")
    with pytest.raises(InputError, match="not an ONNX model"):
        repository.stage(
            "m", 1, artifact_of_graph(tmp_path / "m.onnx", digest_of(tmp_path / "m.onnx"))
        )


@pytest.mark.parametrize("name", ["", "..", "../m", "a/b", ".hidden", "a\n", "é"])
def test_a_name_that_is_no_folder_is_refused(repository, tmp_path, name) -> None:
    with pytest.raises(InputError, match="cannot be the name of a folder"):
        repository.stage(name, 1, linear(tmp_path / "m.onnx"))


def test_version_numbers_start_at_one(repository, tmp_path) -> None:
    with pytest.raises(InputError, match="cannot be served"):
        repository.stage("m", 0, linear(tmp_path / "m.onnx"))


def test_a_removed_version_is_gone(repository, tmp_path) -> None:
    repository.stage("m", 1, linear(tmp_path / "m.onnx"))
    assert repository.remove("m", 1)
    assert not repository.remove("m", 1)
    assert repository.versions() == {"m": ()}


def test_configuration_is_restored_as_it_was(repository, tmp_path) -> None:
    repository.stage("m", 1, linear(tmp_path / "m.onnx"))
    none = repository.saved_config("m")
    config = model_config(
        "m", signature_of(repository.artifact("m", 1)), ServingSpec(), version_policy=specific([1])
    )
    repository.write_config(config, ("a", "b", "c"))
    assert (repository.root / "m/labels.txt").read_text() == "a\nb\nc\n"
    repository.restore("m", none)
    assert sorted(each.name for each in (repository.root / "m").iterdir()) == ["1"]


def test_files_are_not_for_everyone(repository, tmp_path) -> None:
    repository.stage("m", 1, linear(tmp_path / "m.onnx"))
    assert (repository.root / "m/1").stat().st_mode & 0o007 == 0
    assert (repository.root / "m/1/model.onnx").stat().st_mode & 0o007 == 0


def of_files(folder: Path, **contents: str) -> Artifact:
    files = {}
    for name, text in contents.items():
        files[name] = folder / name
        files[name].write_text(text)
    return Artifact(files, digest_of_model({name: digest_of(file) for name, file in files.items()}))


def test_a_version_of_several_files_is_whole_only_with_all_of_them(tmp_path) -> None:
    (tmp_path / "1").mkdir()
    artifact = of_files(tmp_path, weights="w", vocabulary="v")
    write_version(tmp_path / "1", artifact)
    assert read_version(tmp_path / "1").sha256 == artifact.sha256 == found_in(tmp_path / "1")
    assert is_whole(tmp_path / "1")
    for name in artifact.files:
        kept = (tmp_path / "1" / name).read_bytes()
        (tmp_path / "1" / name).chmod(0o640)
        (tmp_path / "1" / name).write_bytes(b"x")
        assert not is_whole(tmp_path / "1")
        (tmp_path / "1" / name).write_bytes(kept)
    (tmp_path / "1" / "weights").unlink()
    assert not is_whole(tmp_path / "1")
    assert found_in(tmp_path / "1") == "no weights"


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "version.json", ""])
def test_a_file_cannot_leave_the_folder_of_its_version(tmp_path, name) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "m").write_text("m")
    with pytest.raises(InputError, match="cannot have this name"):
        write_version(tmp_path / "1", Artifact({name: tmp_path / "m"}, "0" * 64))


def test_a_staged_version_gets_the_settings_of_its_serving_profile(repository, tmp_path) -> None:
    artifact = linear(tmp_path / "m.onnx")
    repository.stage("m", 7, artifact)
    repository.link("m", 7, "m.trial", 1)
    serving = ServingSpec(max_batch_size=8, instance_count=2)
    assert not repository.stage("m", 7, replace(artifact, serving=serving, profile="d"))
    staged = repository.artifact("m", 7)
    assert (staged.serving, staged.profile) == (serving, "d")
    assert repository.is_whole("m", 7)
    assert repository.artifact("m.trial", 1).serving == ServingSpec()
    repository.stage("m", 7, artifact)
    assert repository.artifact("m", 7).serving == ServingSpec()
