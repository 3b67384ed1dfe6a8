import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from export.quantize import quantize_int8
from models.arrays import Array
from models.errors import TransientError, WorkError
from models.onnx_session import OnnxSession


@pytest.fixture(scope="module")
def quantized(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quantized") / "int8.onnx"
    quantize_int8(exported.path, [exported.rows(64, seed=n) for n in range(4)], path)
    return path


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_int8_answers_nearly_as_pytorch_does(exported: Any, quantized: Path, rows: int) -> None:
    batch = exported.rows(rows, seed=100)
    answers = OnnxSession(quantized).answer(batch)
    np.testing.assert_allclose(answers, exported.answer(batch), atol=0.05)


def test_int8_answers_are_not_those_of_fp32(exported: Any, quantized: Path) -> None:
    batch = exported.rows(64)
    assert np.abs(OnnxSession(quantized).answer(batch) - exported.answer(batch)).max() > 1e-5


def test_int8_is_smaller(exported: Any, quantized: Path) -> None:
    assert quantized.stat().st_size < 0.6 * exported.path.stat().st_size


def test_weights_are_int8_channel_by_channel(quantized: Path) -> None:
    weights = [i for i in onnx.load(quantized).graph.initializer if len(i.dims) == 2]
    assert {w.data_type for w in weights if max(w.dims) == 128} == {TensorProto.INT8}
    scales = [i for i in onnx.load(quantized).graph.initializer if i.name.endswith("_scale")]
    assert [128] in [list(scale.dims) for scale in scales]


def test_weights_have_the_7_bits_that_no_x86_processor_overflows(quantized: Path) -> None:
    weights = [i for i in onnx.load(quantized).graph.initializer if len(i.dims) == 2]
    arrays = [numpy_helper.to_array(w) for w in weights if w.data_type == TensorProto.INT8]
    assert max(int(np.abs(array.astype(int)).max()) for array in arrays) == 64


def test_the_source_is_left_as_it_was(exported: Any, tmp_path: Path) -> None:
    before = exported.path.read_bytes()
    quantize_int8(exported.path, [exported.rows(8)], tmp_path / "int8.onnx")
    assert exported.path.read_bytes() == before


def test_a_model_without_layers_to_quantize_is_refused_with_the_reason(tmp_path: Path) -> None:
    shape = ["rows", 2]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["features", "features"], ["prediction"])],
        "square",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, shape)],
    )
    onnx.save_model(helper.make_model(graph), tmp_path / "square.onnx")
    with pytest.raises(WorkError, match="nothing in the model can be quantized") as caught:
        quantize_int8(tmp_path / "square.onnx", [], tmp_path / "int8.onnx")
    assert "Conv, Gemm, MatMul" in str(caught.value)


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    """A model of one layer that can be quantized."""
    weights = helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0] * 4)
    shape = ["rows", 2]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "w"], ["prediction"])],
        "layer",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, shape)],
        [weights],
    )
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    onnx.save_model(model, tmp_path / "layer.onnx")
    return tmp_path / "layer.onnx"


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([], "No data is collected"),
        ([np.zeros((3, 5), np.float32)], "Got invalid dimensions"),
        ([np.full((3, 2), np.nan, np.float32)], "scale"),
    ],
)
def test_rows_that_cannot_calibrate_refuse_the_form(
    layer: Path, tmp_path: Path, rows: list[Array], seen: str
) -> None:
    with pytest.raises(WorkError, match="cannot quantize the model") as caught:
        quantize_int8(layer, rows, tmp_path / "int8.onnx")
    assert seen in str(caught.value)


def test_a_fault_of_the_rows_source_is_passed_on(layer: Path, tmp_path: Path) -> None:
    def lost() -> Iterator[Array]:
        raise TransientError("the table cannot be read")
        yield

    with pytest.raises(TransientError, match="the table cannot be read"):
        quantize_int8(layer, lost(), tmp_path / "int8.onnx")


def test_the_root_logger_keeps_its_level(layer: Path, tmp_path: Path) -> None:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.INFO)
    try:
        quantize_int8(layer, [np.ones((3, 2), np.float32)], tmp_path / "int8.onnx")
        assert root.level == logging.INFO
    finally:
        root.setLevel(before)
