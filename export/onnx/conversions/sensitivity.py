"""Measures the error of each layer when only that layer is in int8, on rows of the train split.

Prints a JSON object with the error of each node: the mean squared difference from the float model's
outputs, relative to the mean square of these outputs.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization.shape_inference import quant_pre_process

from . import batch_file
from .arguments import HEAVY, parser, require_layers
from .int8_static import Ranges, quantize_prepared, with_ranges

MOST_BATCHES = 4


def answers_of(path: Path, calibration: Path) -> Any:
    """Return the first output of a model for the first `MOST_BATCHES` batches, concatenated."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    pairs = zip(range(MOST_BATCHES), batch_file.read(calibration), strict=False)
    return np.concatenate([session.run(None, batch)[0] for _, batch in pairs])


def quantized_nodes(path: Path) -> list[str]:
    """Return the names of the Conv, Gemm and MatMul nodes with constant weights."""
    graph = onnx.load(path).graph
    weights = {each.name for each in graph.initializer}
    return [n.name for n in graph.node if n.op_type in HEAVY and weights & set(n.input)]


def errors(source: Path, calibration: Path, ranges: Ranges) -> dict[str, float]:
    """Return the error for each node when only that node is quantized."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        prepared, alone = Path(folder) / "prepared.onnx", Path(folder) / "alone.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        exact = answers_of(prepared, calibration)
        seen = Path(folder) / "ranges.json"  # a cache, so that calibration runs only once
        for node in quantized_nodes(prepared):
            quantize_prepared(prepared, alone, calibration, ranges, only=[node], seen=seen)
            difference = answers_of(alone, calibration) - exact
            found[node] = float((difference**2).mean() / max((exact**2).mean(), 1e-12))
    return found


def main() -> None:
    """Measure one file, and write the JSON object to `target` and to stdout."""
    given = with_ranges(parser(__doc__, calibrated=True)).parse_args()
    require_layers(given.source, HEAVY)
    ranges = Ranges(given.method, given.activations)
    text = json.dumps(errors(given.source, given.calibration, ranges), indent=1)
    given.target.write_text(text)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
