"""int8 after SmoothQuant: outliers of activations are moved into the weights they meet.

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models": channel j of an activation is divided by s_j = max|X_j|^a / max|W_j|^(1-a), and row j of
the weights multiplied by it, so the product is the same and both are easier to quantize.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from . import batches
from .arguments import parser
from .int8_static import Ranges, quantize, with_ranges
from .layers import require_layers

LAYERS = ["Gemm", "MatMul"]
SMALLEST = 1e-5


@dataclass(frozen=True)
class Product:
    """A product of an activation and constant weights.

    Attributes:
        node: the node.
        weights: float32 `[in, out]`.
        transposed: whether the model holds them as `[out, in]`.
    """

    node: Any
    weights: Any
    transposed: bool


def products_of(graph: Any) -> list[Product]:
    """Return the products whose weights are constants of two dimensions."""
    constants = {each.name: each for each in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type not in LAYERS or node.input[1] not in constants:
            continue
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        weights = numpy_helper.to_array(constants[node.input[1]])
        if weights.ndim != 2 or weights.dtype != np.float32 or attributes.get("transA", 0):
            continue
        transposed = bool(attributes.get("transB", 0))
        found.append(Product(node, weights.T if transposed else weights, transposed))
    return found


def largest_inputs(model: Any, names: Sequence[str], calibration: Path) -> dict[str, Any]:
    """Return the largest magnitude of each channel of these activations, `[channels]`."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    known = {each.name for each in watched.graph.output}
    inputs = {each.name for each in watched.graph.input}
    added = [name for name in names if name not in known | inputs]
    watched.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in added)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, Any] = {}
    for batch in batches.read(calibration):
        seen = dict(zip(added, session.run(added, batch), strict=True)) | {
            name: batch[name] for name in names if name in inputs
        }
        for name, array in seen.items():
            largest = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0, initial=0.0)
            found[name] = np.maximum(found.get(name, 0.0), largest)
    return found


def scales(inputs: Any, weights: Sequence[Any], alpha: float) -> Any:
    """Return what each channel is divided by, `[channels]`.

    Args:
        inputs: largest magnitude of each channel.
        weights: the weights that it meets, each `[in, out]`.
        alpha: share of the difficulty that goes into the weights, 0 to 1.
    """
    rows = np.max([np.abs(each).max(axis=1) for each in weights], axis=0)
    raw = np.maximum(inputs, SMALLEST) ** alpha / np.maximum(rows, SMALLEST) ** (1 - alpha)
    return np.where((inputs > 0) & (rows > 0), raw, 1.0).astype(np.float32)


def smooth(model: Any, calibration: Path, alpha: float) -> None:
    """Move outliers into the weights, in place; what the model answers stays the same."""
    graph = model.graph
    by_input: dict[str, list[Product]] = {}
    for product in products_of(graph):
        by_input.setdefault(product.node.input[0], []).append(product)
    largest = largest_inputs(model, list(by_input), calibration)
    for name, products in by_input.items():
        by = scales(largest[name], [each.weights for each in products], alpha)
        _divide(graph, name, products, by)


def _divide(graph: Any, name: str, products: Sequence[Product], by: Any) -> None:
    """Divide an activation where these products take it, and multiply their weights."""
    smoothed, factor = f"{name}_smoothed", f"{name}_smoothing"
    graph.initializer.append(numpy_helper.from_array((1 / by).astype(np.float32), factor))
    place = min(position for position, node in enumerate(graph.node) if name in node.input)
    graph.node.insert(place, helper.make_node("Mul", [name, factor], [smoothed], smoothed))
    constants: Mapping[str, Any] = {each.name: each for each in graph.initializer}
    for product in products:
        weights = product.weights * by[:, None]
        held = f"{product.node.input[1]}_of_{product.node.name or smoothed}"
        as_held = np.ascontiguousarray(weights.T if product.transposed else weights)
        if held not in constants:
            graph.initializer.append(numpy_helper.from_array(as_held, held))
        product.node.input[0], product.node.input[1] = smoothed, held
    used = {name for node in graph.node for name in node.input}
    kept = [each for each in graph.initializer if each.name in used]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)


def main() -> None:
    """Convert one file."""
    made = with_ranges(parser(__doc__, calibrated=True))
    made.add_argument("--alpha", type=float, default=0.5)
    given = made.parse_args()
    require_layers(given.source, LAYERS)
    model = onnx.load(given.source)
    smooth(model, given.calibration, given.alpha)
    with tempfile.TemporaryDirectory() as folder:
        smoothed = Path(folder) / "smoothed.onnx"
        onnx.save_model(model, smoothed)
        ranges = Ranges(given.method, given.activations)
        quantize(smoothed, given.target, given.calibration, ranges)


if __name__ == "__main__":
    main()
