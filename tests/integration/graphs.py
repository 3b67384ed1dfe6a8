"""Small ONNX graphs, made by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Tensor = tuple[str, int, Sequence[Any]]


def proto(
    nodes: Sequence[Any],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    weights: Sequence[tuple[str, np.ndarray]] = (),
) -> bytes:
    """Return a model of these nodes, inputs, outputs and initializers."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [helper.make_tensor_value_info(*each) for each in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights],
    )
    opsets = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    return bytes(made.SerializeToString())


def constant(value: float, width: int = 4) -> bytes:
    """Every answer is `value`, so an answer tells its version."""
    return proto(
        [
            helper.make_node("ReduceSum", ["x", "axis"], ["sum"]),
            helper.make_node("Mul", ["sum", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "value"], ["y"]),
        ],
        [("x", FLOAT, ["batch", width])],
        [("y", FLOAT, ["batch", 1])],
        [
            ("axis", np.array([1])),
            ("zero", np.zeros(1, np.float32)),
            ("value", np.full(1, value, np.float32)),
        ],
    )
