"""Converts trees to ONNX by onnxmltools: `python -m …boosting_onnx BOOSTER TARGET WIDTH OUTPUT`."""

import sys
from pathlib import Path
from typing import Any

import onnx

from millrace.models.common.errors import WorkError
from millrace.models.inference.model_input import FEATURES

OPSET = 15
"""The newest opset that onnxmltools 1.16 supports."""
ROWS = "rows"
NESTED_CALLS = 100_000
"""Recursion limit of the conversion: onnxmltools calls itself once for each node on a path."""


def convert_trees(booster: Path, target: Path, width: int, output: str) -> None:
    """Write trees as one ONNX file with one input and one output.

    Args:
        booster: the trees' file, as XGBoost saved it.
        target: the path of the ONNX file to write.
        width: the number of values in an encoded row.
        output: the name of the output: `probabilities` or `prediction`.

    Raises:
        WorkError: onnxmltools cannot convert the trees.
    """
    import xgboost
    from onnxmltools.convert import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import XGBConverter

    # A split by a set of categories becomes a chain of nodes that share one branch. onnxmltools
    # 1.16 numbers the shared branch again for every node of the chain, so its time is multiplied
    # by the chain's length with each level of a tree.
    XGBConverter._remap_nodeid = staticmethod(number_nodes)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), NESTED_CALLS))
    trees = xgboost.Booster(model_file=booster)
    kinds = [(FEATURES, FloatTensorType([None, width]))]
    try:
        model = convert_xgboost(trees, initial_types=kinds, target_opset=OPSET)
    except (RecursionError, ValueError, RuntimeError, KeyError) as error:
        raise WorkError(
            "onnxmltools cannot convert the trees",
            seen=f"{type(error).__name__}: {error}",
            hint="raise model.params.max_cat_to_onehot above the number of categories",
        ) from error
    onnx.save_model(_with_one_output(model, output), target)


def number_nodes(root: dict[str, Any]) -> dict[int, int]:
    """Return the position of each node of a tree, by the node's id.

    Parents come before their children. A shared node has one position.
    """
    positions: dict[int, int] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node["nodeid"] not in positions:
            positions[node["nodeid"]] = len(positions)
            waiting += reversed(node.get("children", ()))
    return positions


def _with_one_output(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """Return the ONNX model with only its last output, renamed, and a dynamic batch dimension."""
    kept = model.graph.output[-1]
    for node in model.graph.node:
        for position, name in enumerate(node.output):
            if name == kept.name:
                node.output[position] = output
    kept.name = output
    del model.graph.output[:-1]
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = ROWS
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    convert_trees(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
