"""int8 after SmoothQuant: outliers of an activation are moved into the weights that multiply it.

Xiao et al. 2022, "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models": channel j of an activation is divided by s_j = max|X_j|^a / max|W_j|^(1-a), and row j of
the weights is multiplied by s_j. So the product is the same, and the activation is easier to
quantize. As in the paper, the division is folded into the node that produces the activation, if
possible. This is possible if the node is a Gemm (a ReLU may follow the Gemm) or a LayerNorm, and if
only the products with these weights read the activation. Otherwise a separate node divides. The
separate node costs more than one pass over the activation, because ONNX Runtime then leaves the
layer before the separate node in float.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from . import batch_file
from .arguments import parser, require_layers
from .int8_static import Ranges, quantize, with_ranges

LAYERS = ["Gemm", "MatMul"]
SMALLEST = 1e-5
FOLLOWS = {"Gemm": 1, "LayerNormalization": 1}
"""Node types that a division can be folded into, with the index of the first input to divide. That
input and all later ones must be constants."""


@dataclass(frozen=True)
class Product:
    """A node that multiplies an activation by constant weights.

    Attributes:
        node: the ONNX node.
        weights: float32 `[in, out]`.
        transposed: whether the model stores the weights as `[out, in]`.
    """

    node: Any
    weights: Any
    transposed: bool


def products_of(graph: Any, taking: str | None = None) -> list[Product]:
    """Return the products with constant two-dimensional weights.

    Args:
        graph: the ONNX graph.
        taking: name of the activation that the products read; None for all products.
    """
    constants = {each.name: each for each in graph.initializer}
    found = []
    for node in graph.node:
        if node.op_type not in LAYERS or node.input[1] not in constants:
            continue
        if taking not in (None, node.input[0]):
            continue
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        weights = numpy_helper.to_array(constants[node.input[1]])
        if weights.ndim != 2 or weights.dtype != np.float32 or attributes.get("transA", 0):
            continue
        transposed = bool(attributes.get("transB", 0))
        found.append(Product(node, weights.T if transposed else weights, transposed))
    return found


def largest_inputs(model: Any, names: Sequence[str], calibration: Path) -> dict[str, Any]:
    """Return the largest magnitude of each channel of the named activations, `[channels]`."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    known = {each.name for each in watched.graph.output}
    inputs = {each.name for each in watched.graph.input}
    made = [name for name in names if name not in inputs]
    watched.graph.output.extend(
        helper.make_empty_tensor_value_info(name) for name in made if name not in known
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        watched.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: dict[str, Any] = {}
    for batch in batch_file.read(calibration):
        # a session returns all outputs if it is called with an empty list of names
        seen = dict(zip(made, session.run(made, batch), strict=True)) if made else {}
        seen |= {name: batch[name] for name in names if name in inputs}
        for name, array in seen.items():
            largest = np.abs(array.reshape(-1, array.shape[-1])).max(axis=0, initial=0.0)
            found[name] = np.maximum(found.get(name, 0.0), largest)
    return found


def scales(inputs: Any, weights: Sequence[Any], alpha: float) -> Any:
    """Return the divisor of each channel of an activation, `[channels]`.

    Args:
        inputs: largest magnitude of each channel.
        weights: the weights that multiply the activation, each `[in, out]`.
        alpha: SmoothQuant's migration strength, 0 to 1: the share of the quantization difficulty
            that moves into the weights.
    """
    rows = np.max([np.abs(each).max(axis=1) for each in weights], axis=0)
    raw = np.maximum(inputs, SMALLEST) ** alpha / np.maximum(rows, SMALLEST) ** (1 - alpha)
    return np.where((inputs > 0) & (rows > 0), raw, 1.0).astype(np.float32)


def smooth(model: Any, calibration: Path, alpha: float) -> None:
    """Move outliers into the weights, in place; the model's outputs stay the same."""
    graph = model.graph
    names = list(dict.fromkeys(each.node.input[0] for each in products_of(graph)))
    largest = largest_inputs(model, names, calibration)
    for name in names:
        products = products_of(graph, name)
        by = scales(largest[name], [each.weights for each in products], alpha)
        for each in products:
            weights = each.weights * by[:, None]
            _set(graph, each.node, 1, weights.T if each.transposed else weights)
        makes = _maker(graph, name, [each.node for each in products])
        if makes is None:
            _divide(graph, name, products, by)
        else:
            _absorb(graph, makes, by)
    used = {name for node in graph.node for name in node.input}
    kept = [each for each in graph.initializer if each.name in used]
    graph.ClearField("initializer")
    graph.initializer.extend(kept)


def _maker(graph: Any, name: str, takers: Sequence[Any]) -> Any:
    """Return the node whose constants can be divided instead of an activation, or None.

    None: there is no such node. Only the products may read the activation. A ReLU between the node
    and the products is allowed, because dividing before the ReLU gives the same result as dividing
    after it.
    """
    makers = {output: node for node in graph.node for output in node.output}
    maker, takes = makers.get(name), list(takers)
    if maker is not None and maker.op_type == "Relu" and _only(graph, name, takes):
        name, takes = maker.input[0], [maker]
        maker = makers.get(name)
    if maker is None or not _only(graph, name, takes):
        return None
    first = FOLLOWS.get(maker.op_type)
    constants = {each.name for each in graph.initializer}
    is_constant = first is not None and all(each in constants for each in maker.input[first:])
    return maker if is_constant and not _is_scaled(maker) else None


def _only(graph: Any, name: str, takers: Sequence[Any]) -> bool:
    """Return whether a tensor is read by these nodes only."""
    taking = {node.output[0] for node in graph.node if name in node.input}
    is_output = any(each.name == name for each in graph.output)
    return not is_output and taking == {each.output[0] for each in takers}


def _is_scaled(node: Any) -> bool:
    """Return whether a node multiplies by a factor other than 1 (Gemm's alpha and beta)."""
    attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return any(attributes.get(each, 1.0) != 1.0 for each in ("alpha", "beta"))


def _absorb(graph: Any, node: Any, by: Any) -> None:
    """Divide the output of a node, by dividing its constants."""
    constants = {each.name: each for each in graph.initializer}
    turned = any(each.name == "transB" and each.i for each in node.attribute)
    for position in range(FOLLOWS[node.op_type], len(node.input)):
        array = numpy_helper.to_array(constants[node.input[position]])
        by_column = by[:, None] if turned and position == 1 else by
        _set(graph, node, position, array / by_column)


def _divide(graph: Any, name: str, products: Sequence[Product], by: Any) -> None:
    """Insert a node that divides an activation for these products."""
    smoothed, factor = f"{name}_smoothed", f"{name}_smoothing"
    graph.initializer.append(numpy_helper.from_array((1 / by).astype(np.float32), factor))
    place = min(position for position, node in enumerate(graph.node) if name in node.input)
    graph.node.insert(place, helper.make_node("Mul", [name, factor], [smoothed], smoothed))
    for product in products:
        product.node.input[0] = smoothed


def _set(graph: Any, node: Any, position: int, array: Any) -> None:
    """Replace a constant of a node by a new one, because other nodes may share the old one."""
    known = {each.name for each in graph.initializer}
    base = f"{node.input[position]}_of_{node.name or node.output[0]}"
    name = next(each for n in count() if (each := f"{base}_{n}") not in known)
    held = np.ascontiguousarray(array, dtype=np.float32)
    graph.initializer.append(numpy_helper.from_array(held, name))
    node.input[position] = name


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
