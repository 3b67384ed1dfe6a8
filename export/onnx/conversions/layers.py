"""The layers that hold the weights and the work."""

import sys
from pathlib import Path

import onnx

HEAVY = ["Conv", "Gemm", "MatMul"]
"""The preprocessing and the softmax stay in float: one scale for all columns would flatten raw
features of different ranges.
"""


def require_layers(source: Path, kinds: list[str]) -> None:
    """End the program with the reason unless the model has a layer of these kinds with weights."""
    graph = onnx.load(source).graph
    weights = {initializer.name for initializer in graph.initializer}
    if not any(n.op_type in kinds and weights & set(n.input) for n in graph.node):
        sys.exit(
            f"nothing in the model can be quantized: it has no {', '.join(kinds)} with weights"
        )
