"""How Triton is told of a version, by its kind."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError
from millrace.serving.triton.graph.triton_graph import artifact_of_graph, signature_of
from millrace.serving.triton.model_config import specific
from millrace.serving.triton.version_config import config_of, one_config_for, triton_kind
from millrace.serving.triton.version_folder import Artifact


def graph(path: Path, width: int = 2) -> Artifact:
    shape = ["rows", width]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "ab"]
    nodes = [helper.make_node("Identity", ["a"], ["b"])]
    made = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save_model(helper.make_model(made), path)
    return artifact_of_graph(path, digest_of(path))


@pytest.fixture
def language(tmp_path: Path) -> Artifact:
    file = tmp_path / "openvino_model.xml"
    file.write_text("<net/>")
    return Artifact({file.name: file}, digest_of(file), "language")


def test_versions_share_a_configuration_where_their_clients_see_the_same(
    tmp_path: Path, language: Artifact
) -> None:
    two, three = graph(tmp_path / "2.onnx"), graph(tmp_path / "3.onnx", width=3)
    assert one_config_for(two, graph(tmp_path / "again.onnx"))
    assert not one_config_for(two, three)
    assert one_config_for(language, language)
    assert not one_config_for(two, language)
    assert not one_config_for(language, two)
    reads_text = replace(two, tokenizer="{}")
    assert not one_config_for(two, reads_text)


def test_each_kind_has_its_backend(tmp_path: Path, language: Artifact) -> None:
    found = graph(tmp_path / "2.onnx")
    backends = [
        config_of("m", each, version_policy=specific([1])).backend
        for each in (found, replace(found, tokenizer="{}"), language)
    ]
    assert backends == ["onnxruntime", "text_onnxruntime", "openvino_genai"]


def test_a_graph_has_tensors_and_a_language_model_answers_in_streams(
    tmp_path: Path, language: Artifact
) -> None:
    found = graph(tmp_path / "2.onnx")
    signature = triton_kind(found).signature(found)
    assert signature == signature_of(found)
    assert signature is not None
    assert [(each.name, each.shape) for each in signature.inputs] == [("a", (-1, 2))]
    assert triton_kind(language).signature(language) is None
    with pytest.raises(InputError, match="a language model is not an ONNX graph"):
        signature_of(language)


def test_a_file_that_is_no_graph_cannot_be_served(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_text("no graph")
    broken = artifact_of_graph(tmp_path / "model.onnx", "0" * 64)
    with pytest.raises(InputError, match="model.onnx is not an ONNX model"):
        triton_kind(broken).check(broken)


def test_nothing_lies_beside_what_onnxruntime_and_openvino_serve(
    tmp_path: Path, language: Artifact
) -> None:
    for each in (graph(tmp_path / "2.onnx"), language):
        assert triton_kind(each).backend_files(each, tmp_path) == {}


def test_a_kind_that_is_not_known_is_refused(language: Artifact) -> None:
    with pytest.raises(InputError, match="not know the model kind 'video'"):
        triton_kind(replace(language, kind="video"))
