"""The variants for GPUs, as far as they can be made and looked at without one."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.conversions.bfloat16 import narrowed
from millrace.export.onnx.conversions.modelopt_onnx import options_of, rows_of, unfit_layers
from millrace.export.onnx.graph_variants import MODELOPT
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.onnx_session import OnnxSession


def layer_inputs(graph: Any) -> list[Any]:
    """The nodes that give the layers their inputs."""
    by_output = {output: node for node in graph.node for output in node.output}
    names = [name for node in graph.node if node.op_type == "Gemm" for name in node.input]
    return [by_output[name] for name in names if name in by_output]


def test_bf16_answers_nearly_as_float_does_where_there_are_kernels(
    exporter: Exporter, exported: Any
) -> None:
    rows = exported.rows(16, seed=7)
    model = onnx.load(exporter.make("onnx-bf16"))
    (answers,) = ReferenceEvaluator(model).run(None, {"features": rows})
    assert 1e-6 < np.abs(answers - exported.answer(rows)).max() < 0.02


def test_bf16_holds_its_weights_in_two_bytes_and_its_preprocessing_in_four(
    exporter: Exporter,
) -> None:
    graph = onnx.load(exporter.make("onnx-bf16")).graph
    kinds = {len(w.dims): w.data_type for w in graph.initializer if "net" in w.name}
    assert kinds[2] == TensorProto.BFLOAT16
    assert [w.data_type for w in graph.initializer if "mean" in w.name] == [TensorProto.FLOAT]
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_a_tensor_that_two_layers_take_is_narrowed_once() -> None:
    weights = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], [name]) for name in ("a", "b")]
    nodes.append(helper.make_node("Add", ["a", "b"], ["y"]))
    shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2])
    graph = helper.make_graph(nodes, "g", [shape], [out], [weights])
    opset = [helper.make_opsetid("", 22)]
    made = narrowed(helper.make_model(graph, opset_imports=opset, ir_version=10))
    onnx.checker.check_model(made, full_check=True)
    assert [node.op_type for node in made.graph.node].count("Cast") == 3
    assert [each.name for each in made.graph.initializer] == ["w_bf16"]


def test_the_cpu_that_has_no_bf16_is_told_by_the_operator_that_lacks(exporter: Exporter) -> None:
    path = exporter.make("onnx-bf16")
    with pytest.raises(WorkError, match=r"no kernel on this machine for Gemm\(13\) in onnx-bf16"):
        OnnxSession(path)


def test_symmetric_int8_is_what_tensorrt_takes(exporter: Exporter) -> None:
    graph = onnx.load(exporter.make("onnx-int8-symmetric")).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    points = [array for name, array in arrays.items() if name.endswith("zero_point")]
    assert points
    assert all(point.dtype == np.int8 and not point.any() for point in points)
    assert {arrays[n].dtype for n in arrays if n.endswith(".bias")} == {np.dtype(np.float32)}
    assert max(int(np.abs(a.astype(int)).max()) for a in arrays.values() if a.dtype == np.int8) > 64


def test_fp8_is_e4m3_with_one_scale_a_tensor(exporter: Exporter) -> None:
    graph = onnx.load(exporter.make("onnx-fp8")).graph
    kinds = {each.name: each.data_type for each in graph.initializer}
    held = {kind for name, kind in kinds.items() if name.endswith("weight_quantized")}
    assert held == {TensorProto.FLOAT8E4M3FN}
    assert {node.op_type for node in layer_inputs(graph)} == {"DequantizeLinear"}


def test_fp8_answers_nearly_as_float_does_before_onnxruntime_optimizes_it(
    exporter: Exporter, exported: Any
) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    path, rows = exporter.make("onnx-fp8"), exported.rows(64, seed=3)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    answers = session.run(None, {"features": rows})[0]
    assert np.abs(answers - exported.answer(rows)).max() < 0.2
    same = answers.argmax(axis=1) == exported.answer(rows).argmax(axis=1)
    assert same.mean() > 0.9


def test_the_cpu_that_multiplies_no_fp8_is_told_by_the_operator_too(exporter: Exporter) -> None:
    path = exporter.make("onnx-fp8")
    with pytest.raises(WorkError, match=r"machine for QGemm of tensor\(float8e4m3fn\) in onnx-fp8"):
        OnnxSession(path)


def test_batches_become_one_array_for_each_input(tmp_path: Path) -> None:
    full = {"x": np.ones((2, 3)), "m": np.ones((2, 1))}
    written = [full, full, {"x": np.ones((1, 3)), "m": np.array([[2.0]])}]
    batch_file.write(tmp_path / "b.npz", written)
    found = rows_of(tmp_path / "b.npz")
    assert {name: array.shape for name, array in found.items()} == {"x": (4, 3), "m": (4, 1)}


def products(**dims: tuple[int, int]) -> Any:
    """A model with a layer for each name, of weights of these dimensions."""
    nodes = [helper.make_node(name.split("_")[0], ["x", name], [name], name=name) for name in dims]
    held = [numpy_helper.from_array(np.ones(d, np.float32), name) for name, d in dims.items()]
    return helper.make_model(helper.make_graph(nodes, "g", [], [], held))


def test_int4_leaves_the_layers_alone_that_no_block_fits() -> None:
    model = products(MatMul_a=(64, 8), MatMul_b=(48, 64), Gemm_c=(64, 64))
    assert unfit_layers(model) == ["MatMul_b", "Gemm_c"]
    options = options_of("int4", model)
    assert (options["calibration_method"], options["nodes_to_exclude"]) == (
        "awq_clip",
        ["MatMul_b", "Gemm_c"],
    )


def test_int8_by_modelopt_names_the_layers_and_keeps_products_of_a_dynamic_batch() -> None:
    options = options_of("int8", products(Gemm_a=(8, 8)))
    assert options["op_types_to_quantize"] == ["Conv", "Gemm", "MatMul"]
    assert options["enable_gemv_detection_for_trt"] is False


@pytest.mark.gpu  # of the extra modelopt, which GPU machines install; it runs on a CPU too
@pytest.mark.parametrize("mode", ["int8", "fp8", "int4"])
def test_modelopt_quantizes_matrix_products(mode: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = products(MatMul_a=(64, 32))
    model.graph.node[0].input[0] = "features"
    for values, name, width in ((model.graph.input, "features", 64), (model.graph.output, "y", 32)):
        values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]))
    model.graph.node[0].output[0] = "y"
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 20))
    model.ir_version = 10
    rows = rng.normal(size=(64, 64)).astype(np.float32)
    onnx.save_model(model, tmp_path / "m.onnx")
    batch_file.write(tmp_path / "rows.npz", [{"features": rows}])
    words = [tmp_path / "m.onnx", tmp_path / "q.onnx", "--calibration", tmp_path / "rows.npz"]
    run_in_subprocess(MODELOPT, [*words, "--mode", mode], Limits(120.0, 16 << 30))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), options, providers=providers)
    exact = rows @ np.ones((64, 32), np.float32)
    error = np.abs(session.run(None, {"features": rows})[0] - exact).max() / np.abs(exact).max()
    assert error < 0.1
