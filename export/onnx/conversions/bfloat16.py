"""bf16 products: Conv, Gemm and MatMul compute in bf16, all other nodes in float32.

torch.autocast does the same. bf16 has float32's range, so no value overflows. Weights are stored in
bf16; inputs and outputs of the model stay in float32.
"""

from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

from .arguments import HEAVY, parser, require_layers

OPSET = 22
"""The first opset in which Conv supports bf16."""


class Narrowing:
    """Converts the layers of a graph to bf16, one node at a time.

    Attributes:
        graph: the graph, which gets the bf16 weights.
        nodes: the new nodes, in order.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self._weights = {
            each.name: each for each in graph.initializer if each.data_type == TensorProto.FLOAT
        }
        self._copies: dict[str, str] = {}

    def keep(self, node: Any) -> None:
        """Add a node unchanged."""
        self.nodes.append(node)

    def narrow(self, node: Any) -> None:
        """Add a layer with bf16 inputs and output, and a cast of its output back to float32."""
        layer = onnx.NodeProto()
        layer.CopyFrom(node)
        layer.ClearField("input")
        layer.input.extend(self._copy_of(name) for name in node.input)
        (output,) = node.output
        layer.output[0] = f"{output}_bf16_result"
        back = helper.make_node("Cast", [layer.output[0]], [output], to=TensorProto.FLOAT)
        self.nodes += [layer, back]

    def _copy_of(self, name: str) -> str:
        """Return the name of a tensor's bf16 copy; add the copy if there is none yet."""
        if not name or name in self._copies:
            return self._copies.get(name, name)
        copy = self._copies[name] = f"{name}_bf16"
        if name in self._weights:
            values = numpy_helper.to_array(self._weights[name])
            kept = helper.make_tensor(copy, TensorProto.BFLOAT16, values.shape, values)
            self.graph.initializer.append(kept)
        else:
            self.nodes.append(helper.make_node("Cast", [name], [copy], to=TensorProto.BFLOAT16))
        return copy


def narrowed(model: Any) -> Any:
    """Return the model with its Conv, Gemm and MatMul layers in bf16.

    Args:
        model: a float32 model of opset `OPSET` or later.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    narrowing = Narrowing(made.graph)
    for node in model.graph.node:
        (narrowing.narrow if node.op_type in HEAVY else narrowing.keep)(node)
    used = {name for node in narrowing.nodes for name in node.input}
    kept = [each for each in made.graph.initializer if each.name in used]
    for field in ("node", "initializer", "value_info"):
        made.graph.ClearField(field)
    made.graph.node.extend(narrowing.nodes)
    made.graph.initializer.extend(kept)
    return made


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    require_layers(given.source, HEAVY)
    model = onnx.load(given.source)
    if next(each.version for each in model.opset_import if not each.domain) < OPSET:
        model = version_converter.convert_version(model, OPSET)
    onnx.save_model(narrowed(model), given.target)


if __name__ == "__main__":
    main()
