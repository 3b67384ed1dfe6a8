"""int8, fp8 or int4 (AWQ) by NVIDIA ModelOpt, for TensorRT.

Lin et al. 2023, "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration".
Calibration runs on the CPU with onnxruntime.
"""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from . import batch_file
from .arguments import HEAVY, parser, require_layers

METHODS = {"int8": "max", "fp8": "max", "int4": "awq_clip"}
"""Calibration methods. int4 uses awq_clip, because awq_lite of ModelOpt 0.47 fails without cupy
when it folds a scale into the layer before."""
BLOCK_SIZE = 32
"""Number of int4 weights that share a scale."""


def rows_of(calibration: Path) -> dict[str, Any]:
    """Return the calibration batches as one array for each input, `[rows, …]`."""
    parts: dict[str, list[Any]] = {}
    for batch in batch_file.of_one_shape(calibration):
        for name, array in batch.items():
            parts.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def options_of(mode: str, model: Any) -> dict[str, Any]:
    """Return the arguments of `modelopt.onnx.quantization.quantize` for a mode and a model."""
    options = {"quantize_mode": mode, "calibration_method": METHODS[mode]}
    if mode == "int4":
        unfit = [re.escape(name) for name in unfit_layers(model)]
        return {**options, "block_size": BLOCK_SIZE, "nodes_to_exclude": unfit}
    # ModelOpt skips matrix-vector products, and treats a dynamic batch as one row. So the detection
    # of such products is off.
    return {**options, "op_types_to_quantize": HEAVY, "enable_gemv_detection_for_trt": False}


def unfit_layers(model: Any) -> list[str]:
    """Return the names of the layers that int4 cannot divide into blocks, which stay in float.

    ModelOpt's blocks run along the first dimension of the weights. It is the input dimension in
    MatMul, and the output dimension in torch's Gemm, so a Gemm always stays in float.
    """
    weights = {each.name: list(each.dims) for each in model.graph.initializer}
    layers = [n for n in model.graph.node if n.op_type in HEAVY and n.input[1] in weights]
    return [
        node.name
        for node in layers
        if node.op_type != "MatMul" or weights[node.input[1]][-2] % BLOCK_SIZE
    ]


def main() -> None:
    """Convert one file."""
    made = parser(__doc__, calibrated=True)
    made.add_argument("--mode", choices=sorted(METHODS), required=True)
    given = made.parse_args()
    require_layers(given.source, ["MatMul"] if given.mode == "int4" else HEAVY)
    from modelopt.onnx.quantization import quantize

    quantize(
        str(given.source),
        calibration_data=rows_of(given.calibration),
        calibration_eps=["cpu"],
        output_path=str(given.target),
        high_precision_dtype="fp32",
        log_level="ERROR",
        **options_of(given.mode, onnx.load(given.source)),
    )
    nodes = onnx.load(given.target).graph.node
    if not any(node.op_type == "DequantizeLinear" for node in nodes):
        sys.exit("ModelOpt quantized no layer of the model")


if __name__ == "__main__":
    main()
