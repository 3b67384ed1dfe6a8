from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

WriteModel = Callable[[Path, int], Path]


@pytest.fixture(scope="session")
def write_model() -> WriteModel:
    """Writes a model that gives back the first of its three inputs, so answers are known."""
    return _write_model


def _write_model(path: Path, outputs: int) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Slice", ["features", "zero", "outputs", "one"], ["answers"])],
        "first",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 3])],
        [helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["rows", outputs])],
        [
            helper.make_tensor(name, TensorProto.INT64, [1], [value])
            for name, value in (("zero", 0), ("outputs", outputs), ("one", 1))
        ],
    )
    opset = helper.make_opsetid("", 20)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path
