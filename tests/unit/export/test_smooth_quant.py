"""Smoothing moves numbers about and changes no answer."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.conversions.smooth_quant import smooth

WIDTH, OUTLIER = 8, 3
ROWS = np.random.default_rng(0).normal(size=(32, WIDTH)).astype(np.float32)


def weights(seed: int, rows: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def model_of(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    """A graph from `x`; the first layer makes one channel an outlier."""
    first = weights(0)
    first[:, OUTLIER] *= 100
    constants = {"w0": first, "w0t": first.T.copy(), "b0": weights(1, 1)[0]}
    constants |= {"w1": weights(2), "scale": np.abs(weights(3, 1)[0]), "one": weights(4, 1)[0]}
    graph = helper.make_graph(
        list(nodes),
        "smoothed",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", WIDTH]) for n in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def node(kind: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def answers(model: onnx.ModelProto, watched: str | None = None) -> list[np.ndarray]:
    if watched is not None:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        model.graph.output.append(helper.make_empty_tensor_value_info(watched))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return [np.asarray(each) for each in session.run(None, {"x": ROWS})]


def smoothed(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    batch_file.write(folder / "rows.npz", [{"x": ROWS}])
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    smooth(copy, folder / "rows.npz", 0.5)
    onnx.checker.check_model(copy, full_check=True)
    return copy


RELU = (node("Relu", "h", "r"), node("Gemm", "r w1", "y"))
ABSORBED = {
    "through a ReLU": (node("Gemm", "x w0 b0", "h"), *RELU),
    "weights the other way": (node("Gemm", "x w0t b0", "h", transB=1), *RELU),
    "without a bias": (node("Gemm", "x w0", "h"), *RELU),
    "at once": (node("Gemm", "x w0 b0", "h"), node("MatMul", "h w1", "y")),
    "a LayerNorm": (
        *(node("Gemm", "x w0", "h"), node("LayerNormalization", "h scale one", "r")),
        node("MatMul", "r w1", "y"),
    ),
}
DIVIDED = {
    "something else takes it": (
        *(node("Gemm", "x w0 b0", "h"), node("Relu", "h", "r"), node("Gemm", "r w1", "z")),
        node("Add", "z r", "y"),
    ),
    "something else takes what the ReLU takes": (
        *(node("Gemm", "x w0 b0", "h"), node("Relu", "h", "r"), node("Gemm", "r w1", "z")),
        node("Add", "z h", "y"),
    ),
    "a curve": (
        *(node("Gemm", "x w0 b0", "h"), node("Tanh", "h", "r")),
        node("Gemm", "r w1", "y"),
    ),
    "a scaled layer": (node("Gemm", "x w0 b0", "h", alpha=0.5), *RELU),
}


@pytest.mark.parametrize("nodes", ABSORBED.values(), ids=ABSORBED)
def test_the_layer_before_divides_and_no_node_is_added(
    nodes: tuple[onnx.NodeProto, ...], tmp_path: Path
) -> None:
    before = model_of(*nodes)
    after = smoothed(before, tmp_path)
    (wanted,), (got,) = answers(before), answers(after)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    added = len(after.graph.node) - len(nodes)
    assert added == 1  # of the input, which nothing makes
    taken = after.graph.node[-1].input[0]
    outlying = [np.abs(answers(each, taken)[-1]).max(axis=0) for each in (before, after)]
    if "LayerNormalization" not in {each.op_type for each in nodes}:  # it has no outlier to move
        spread = [each.max() / np.median(each) for each in outlying]
        assert spread[1] < spread[0] / 2


@pytest.mark.parametrize("nodes", DIVIDED.values(), ids=DIVIDED)
def test_where_it_cannot_a_node_does(nodes: tuple[onnx.NodeProto, ...], tmp_path: Path) -> None:
    before = model_of(*nodes)
    after = smoothed(before, tmp_path)
    (wanted,), (got,) = answers(before), answers(after)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    assert len(after.graph.node) == len(nodes) + 2


def test_what_a_client_sees_is_not_divided(tmp_path: Path) -> None:
    nodes = (node("Gemm", "x w0 b0", "h"), node("MatMul", "h w1", "y"))
    before = model_of(*nodes, outputs=("y", "h"))
    after = smoothed(before, tmp_path)
    for got, wanted in zip(answers(after), answers(before), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
