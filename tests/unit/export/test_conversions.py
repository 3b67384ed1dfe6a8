"""Every variant that can be made of a small classifier, and what refuses to be made."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from millrace.export.conversion_programs import COMMANDS
from millrace.export.onnx.conversions import batch_file
from millrace.export.onnx.graph_variants import FP32, STATIC, VARIANTS
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.arrays import Array
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.onnx_session import OnnxSession

LIMITS = Limits(120.0, 16 << 30)
INT8 = "onnx-int8-static"
NEAR = {"onnx-fp16": 0.01, "onnx-optimized": 1e-5, "onnx-int8-weights": 0.02}
UNFIT = {"onnx-int8-weights", "onnx-int4-weights"}
"""The classifier has Gemm layers, which have no weight-only variant."""
FOR_GPUS = {name for name, variant in VARIANTS.items() if variant.package} | {
    "onnx-bf16",
    "onnx-fp8",
}
"""What onnxruntime cannot answer on a CPU, or needs another package."""


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - UNFIT - FOR_GPUS))
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_a_form_answers_nearly_as_pytorch_does(
    exporter: Exporter, exported: Any, name: str, rows: int
) -> None:
    batch = exported.rows(rows, seed=100)
    answers = OnnxSession(exporter.make(name)).answer(batch)
    np.testing.assert_allclose(answers, exported.answer(batch), atol=NEAR.get(name, 0.05))


@pytest.mark.parametrize("name", sorted(VARIANTS.keys() - UNFIT - FOR_GPUS - {"onnx-optimized"}))
def test_a_form_is_another_and_smaller(exporter: Exporter, exported: Any, name: str) -> None:
    batch, path = exported.rows(64), exporter.make(name)
    assert np.abs(OnnxSession(path).answer(batch) - exported.answer(batch)).max() > 1e-6
    assert path.stat().st_size < 0.65 * exporter.make(FP32).stat().st_size


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_a_model_without_layers_for_a_form_is_told_which_it_needs(
    exporter: Exporter, name: str
) -> None:
    with pytest.raises(WorkError, match="nothing in the model can be quantized.*MatMul"):
        exporter.make(name)


@pytest.mark.parametrize("name", sorted(UNFIT))
def test_matrix_products_have_a_weight_only_form(name: str, tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    source, target = matmul(tmp_path, weights), tmp_path / "converted.onnx"
    variant = VARIANTS[name]
    run_in_subprocess(variant.program, [source, target, *variant.options], LIMITS)
    assert [node.op_type for node in onnx.load(target).graph.node] == ["MatMulNBits"]
    rows = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    exact = rows @ weights
    error = np.abs(OnnxSession(target).answer(rows) - exact).max() / np.abs(exact).max()
    assert 0 < error < (0.15 if "int4" in name else 0.02)
    assert target.stat().st_size < (0.35 if "int4" in name else 0.5) * source.stat().st_size


def test_static_weights_are_int8_channel_by_channel(exporter: Exporter) -> None:
    graph = onnx.load(exporter.make(INT8)).graph
    weights = [i for i in graph.initializer if len(i.dims) == 2]
    assert {w.data_type for w in weights if max(w.dims) == 128} == {TensorProto.INT8}
    scales = [i for i in graph.initializer if i.name.endswith("_scale")]
    assert [128] in [list(scale.dims) for scale in scales]


def test_static_weights_have_the_7_bits_that_no_x86_processor_overflows(
    exporter: Exporter,
) -> None:
    graph = onnx.load(exporter.make(INT8)).graph
    weights = [i for i in graph.initializer if len(i.dims) == 2]
    arrays = [numpy_helper.to_array(w) for w in weights if w.data_type == TensorProto.INT8]
    assert max(int(np.abs(array.astype(int)).max()) for array in arrays) == 64


def test_what_is_kept_in_float_is_not_quantized(exporter: Exporter, tmp_path: Path) -> None:
    source, target = exporter.make(FP32), tmp_path / "kept.onnx"
    layers = [n.name for n in onnx.load(source).graph.node if n.op_type == "Gemm"]
    exporter.make(INT8)
    words = [source, target, "--calibration", exporter.folder / "calibration.npz", "--keep"]
    run_in_subprocess(STATIC, [*words, *layers[1:]], LIMITS)
    weights = [i for i in onnx.load(target).graph.initializer if len(i.dims) == 2]
    kinds = [w.data_type for w in weights]
    assert kinds.count(TensorProto.INT8) == 1
    assert kinds.count(TensorProto.FLOAT) == len(layers) - 1


def test_the_source_is_left_as_it_was(exporter: Exporter) -> None:
    before = digest_of(exporter.make(FP32))
    (exporter.folder / f"{INT8}.onnx").unlink(missing_ok=True)
    exporter.make(INT8)
    assert digest_of(exporter.make(FP32)) == before


@pytest.mark.parametrize("name", ["onnx-int8-dynamic", INT8])
def test_the_command_that_is_left_makes_the_same_form_again(
    exporter: Exporter, name: str, tmp_path: Path
) -> None:
    made = exporter.make(name)
    for path in exporter.programs.reproduction():
        copy = shutil.copytree if path.is_dir() else shutil.copyfile
        copy(path, tmp_path / path.name)  # type: ignore[operator]
    lines = (tmp_path / COMMANDS).read_text().splitlines()
    command = shlex.split(lines[lines.index(f"# {name}") + 1])
    assert command[:2] == ["python", "-m"]
    subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, check=True, env={})
    onnx.save_model(onnx.load(tmp_path / f"{name}.onnx"), tmp_path / "again.onnx")
    assert digest_of(tmp_path / "again.onnx") == digest_of(made)


@pytest.mark.parametrize(
    ("rows", "seen"),
    [
        ([], "No data is collected"),
        ([np.zeros((3, 5), np.float32)], "[Ii]nvalid dimensions"),
        ([np.full((3, 2), np.nan, np.float32)], "scale"),
    ],
)
def test_rows_that_cannot_calibrate_refuse_the_form(
    tmp_path: Path, rows: list[Array], seen: str
) -> None:
    source = matmul(tmp_path, np.ones((2, 2), np.float32))
    batch_file.write(tmp_path / "rows.npz", ({"features": each} for each in rows))
    words = [source, tmp_path / "int8.onnx", "--calibration", tmp_path / "rows.npz"]
    with pytest.raises(WorkError, match=seen):
        run_in_subprocess(STATIC, words, LIMITS)


def test_batches_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = [
        {"input_ids": np.arange(6).reshape(2, 3), "mask": np.ones((2, 3), bool)},
        {"input_ids": np.arange(4).reshape(1, 4), "mask": np.zeros((1, 4), bool)},
    ]
    batch_file.write(tmp_path / "b.npz", written)
    read = list(batch_file.read(tmp_path / "b.npz"))
    assert len(read) == 2
    for one, other in zip(written, read, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def matmul(folder: Path, weights: Array) -> Path:
    """A model of one layer that can be quantized."""
    wide, narrow = weights.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "w"], ["prediction"], name="layer")],
        "layer",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", wide])],
        [helper.make_tensor_value_info("prediction", TensorProto.FLOAT, ["rows", narrow])],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save_model(
        helper.make_model(graph, opset_imports=[opset], ir_version=10), folder / "layer.onnx"
    )
    return folder / "layer.onnx"


def test_batches_are_cut_to_the_shape_that_all_full_ones_have(tmp_path: Path) -> None:
    path = tmp_path / "batches.npz"
    shapes = [(4, 7), (4, 5), (4, 9), (1, 9)]
    batch_file.write(path, ({"x": np.full(shape, n)} for n, shape in enumerate(shapes)))
    found = [batch["x"] for batch in batch_file.of_one_shape(path)]
    assert [array.shape for array in found] == [(4, 5)] * 3
    assert [array[0, 0] for array in found] == [0, 1, 2]
    batch_file.write(path, ())
    assert batch_file.of_one_shape(path) == []
