"""onnxruntime's graph optimizations, applied once instead of at every load.

In a transformer, attention, LayerNorm with its residual and GELU with its bias become one node
each.

onnxruntime's attention fusion expects that scores are divided by a scale, not multiplied, and that
the padding mask is computed in one particular way. torch's exporter writes neither. So the scales
are inverted, and the mask that all layers share is rebuilt. The original and the rewritten model
are both run, and the rewritten model is used only if the outputs are nearly the same.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.transformers import optimizer

from .arguments import parser


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    model = onnx.load(given.source)
    if any(node.op_type == "LayerNormalization" for node in model.graph.node):
        fuse(model, given.target)
    else:
        optimize(given.source, given.target)


def fuse(model: onnx.ModelProto, target: Path) -> None:
    """Fuse the nodes of a transformer, and write the model to `target`."""
    turned, heads = turn_attention(model) or (model, Heads(0, 0))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "plain.onnx"
        onnx.save_model(turned, source)
        fused = optimizer.optimize_model(
            str(source),
            model_type="bert",
            num_heads=heads.count,
            hidden_size=heads.hidden,
            opt_level=0,  # higher levels choose kernels for this machine's processor
        )
    fused.save_model_to_file(str(target))


def optimize(source: Path, target: Path) -> None:
    """Fold constants and remove redundant nodes of any ONNX graph."""
    options = onnxruntime.SessionOptions()
    # higher levels choose kernels for this machine's processor
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


NEAR = 1e-4
ROWS, TOKENS = 4, 4
"""Shape of the input for the comparison of the original and the rewritten model; short, because a
model may have a small context."""


@dataclass(frozen=True)
class Heads:
    """The number of a model's attention heads, and their total width.

    Attributes:
        count: number of heads.
        hidden: width of all heads together.
    """

    count: int
    hidden: int


def turn_attention(model: ModelProto) -> tuple[ModelProto, Heads] | None:
    """Return the model with attention rewritten for the fusion, and its attention heads.

    Return None if the model cannot be rewritten.

    Args:
        model: a model with one input, the tokens. It masks the tokens that equal a constant
            (padding).
    """
    made = ModelProto()
    made.CopyFrom(model)
    graph = _Graph(made)
    masked = list(graph.find_masked())
    masks, heads = {mask for _, _, mask in masked}, graph.find_heads()
    if len(masks) != 1 or heads is None or (padding := graph.find_padding()) is None:
        return None
    for scaled, add, mask in masked:
        graph.divide(scaled)
        add.input[list(add.input).index(mask)] = "attention_mask"
    graph.insert(padding, _make_mask(padding.output[0]))
    return (made, heads) if _answer_alike(model, made, graph) else None


class _Graph:
    """An ONNX graph, with its nodes by output name and its constants by name."""

    def __init__(self, model: ModelProto) -> None:
        self.graph = model.graph
        self.made_by = {name: node for node in self.graph.node for name in node.output}
        self.constants: Mapping[str, TensorProto] = {
            each.name: each for each in self.graph.initializer
        }

    def find_masked(self) -> Iterator[tuple[NodeProto, NodeProto, str]]:
        """Yield each attention's scaling node, its node that adds the mask, and the mask's name."""
        for softmax in self.graph.node:
            add = self.made_by.get(softmax.input[0]) if softmax.op_type == "Softmax" else None
            if add is None or add.op_type != "Add":
                continue
            for products, mask in (add.input, reversed(add.input)):
                scaled = self.made_by.get(products)
                if scaled is not None and self._scales_products(scaled):
                    yield scaled, add, mask

    def _scales_products(self, node: NodeProto) -> bool:
        product = self.made_by.get(node.input[0])
        is_scale = node.op_type == "Mul" and node.input[1] in self.constants
        return is_scale and product is not None and product.op_type == "MatMul"

    def find_heads(self) -> Heads | None:
        """Return the attention heads, read from the first tensor that is reshaped into heads."""
        for node in self.graph.node:
            shape = self.made_by.get(node.input[1]) if node.op_type == "Reshape" else None
            if shape is None or shape.op_type != "Concat" or len(shape.input) != 4:
                continue
            width, summed = self.constants.get(shape.input[3]), self.made_by.get(node.input[0])
            added = [name for name in summed.input if name in self.constants] if summed else []
            if width is None or not added or len(self.constants[added[0]].dims) != 1:
                continue
            size = int(numpy_helper.to_array(width).item())
            hidden = int(self.constants[added[0]].dims[0])
            return Heads(hidden // size, hidden)
        return None

    def find_padding(self) -> NodeProto | None:
        """Return the node that compares tokens with the padding token; None if there is none."""
        tokens = self.graph.input[0].name
        nodes = (each for each in self.graph.node if each.op_type == "Equal")
        return next((each for each in nodes if self._compares(each, tokens)), None)

    def _compares(self, node: NodeProto, tokens: str) -> bool:
        others = [each for each in node.input if each != tokens]
        return len(others) == 1 and others[0] in self.constants

    def divide(self, node: NodeProto) -> None:
        """Replace a multiplication by a constant with a division by its inverse."""
        factor = numpy_helper.to_array(self.constants[node.input[1]])
        name = f"{node.output[0]}.scale"
        self.graph.initializer.append(
            numpy_helper.from_array((1 / factor).astype(factor.dtype), name)
        )
        node.op_type, node.input[1] = "Div", name

    def insert(self, after: NodeProto, made: tuple[list[NodeProto], list[TensorProto]]) -> None:
        """Insert nodes after a node, and add their constants to the graph."""
        place = list(self.graph.node).index(after) + 1
        for node in reversed(made[0]):
            self.graph.node.insert(place, node)
        self.graph.initializer.extend(made[1])

    def vocabulary(self) -> int:
        """Return the vocabulary size: the number of rows of the token embedding."""
        tokens = self.graph.input[0].name
        sizes = [
            self.constants[node.input[0]].dims[0]
            for node in self.graph.node
            if node.op_type == "Gather"
            and node.input[1] == tokens
            and node.input[0] in self.constants
        ]
        return int(min(sizes, default=2))


def _make_mask(is_padding: str) -> tuple[list[NodeProto], list[TensorProto]]:
    """Return nodes and constants that compute `attention_mask`, which is added to the scores.

    Args:
        is_padding: name of the `[rows, tokens]` tensor that is true for padding.
    """
    lowest = np.finfo(np.float32).min
    constants = {
        "mask.rows": np.array([1]),
        "mask.heads": np.array([2]),
        "mask.one": np.float32(1),
        "mask.lowest": np.float32(lowest),
    }
    nodes = [
        helper.make_node("Not", [is_padding], ["mask.kept"]),
        helper.make_node("Unsqueeze", ["mask.kept", "mask.rows"], ["mask.3d"]),
        helper.make_node("Unsqueeze", ["mask.3d", "mask.heads"], ["mask.4d"]),
        helper.make_node("Cast", ["mask.4d"], ["mask.cast"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["mask.one", "mask.cast"], ["mask.left"]),
        helper.make_node("Mul", ["mask.left", "mask.lowest"], ["attention_mask"]),
    ]
    return nodes, [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]


def _answer_alike(model: ModelProto, made: ModelProto, graph: _Graph) -> bool:
    """Return whether both models' outputs differ by at most `NEAR`, with and without padding."""
    padding = graph.find_padding()
    assert padding is not None
    token = next(each for each in padding.input if each in graph.constants)
    rows = np.random.default_rng(0).integers(0, graph.vocabulary(), (ROWS, TOKENS))
    rows[1::2, TOKENS // 2 :] = numpy_helper.to_array(graph.constants[token])
    feed = {graph.graph.input[0].name: rows.astype(np.int64)}
    first, second = (_answer(each, feed) for each in (model, made))
    return bool(np.abs(first - second).max() <= NEAR)


def _answer(model: ModelProto, feed: Mapping[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed)[0]


if __name__ == "__main__":
    main()
