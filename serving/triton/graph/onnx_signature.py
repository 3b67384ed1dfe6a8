"""What an ONNX file says about itself: its inputs and outputs, and whether it is one file.

Only the graph is read. Nothing is run, and nothing outside the file is opened.

A graph that reads tokens has the tokenizer before it: its client sends `text`, [rows, 1], and
gets the graph's own output, its classes by name if it asks for the output's `classification`.

An output of strings would be plainer for clients, but Triton 2.51 divides by the size of an element
when somebody asks for its classification, and a string has none: the whole server ends.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import uses_external_data

from millrace.models.common.errors import InputError
from millrace.serving.triton.model_config import DYNAMIC, TEXT_BACKEND, Signature, TensorSpec


def read_signature(path: Path) -> Signature:
    """Read the inputs and outputs of the ONNX file at `path`.

    Raises:
        InputError: not an ONNX file, weights in other files, or a tensor that Triton cannot serve.
    """
    model = _read(path)
    _refuse_external_data(model, path)
    if not all(value.type.tensor_type.HasField("shape") for value in model.graph.output):
        model = onnx.shape_inference.infer_shapes(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    return Signature(
        inputs=tuple(_spec(value) for value in model.graph.input if value.name not in weights),
        outputs=tuple(_spec(value) for value in model.graph.output),
    )


def _read(path: Path) -> ModelProto:
    valid, hint = "an ONNX model in one file", "export the model again"
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise InputError(
            f"{path.name} is not an ONNX model", seen=error, valid=valid, hint=hint
        ) from error
    if not model.graph.output:
        raise InputError(
            f"{path.name} is not an ONNX model", seen="no outputs", valid=valid, hint=hint
        )
    return model


def _refuse_external_data(model: ModelProto, path: Path) -> None:
    for tensor in _tensors(model):
        if uses_external_data(tensor):
            raise InputError(
                f"the weights of {path.name} are in other files",
                seen=f"tensor {tensor.name!r} with external data",
                valid="one self-contained ONNX file under 2 GB",
                hint="save it with save_as_external_data=False",
            )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor: weights, sparse weights and attributes, subgraphs and functions too."""
    yield from _graph_tensors(model.graph)
    for function in model.functions:
        yield from _node_tensors(function.node)


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: "list[NodeProto]") -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _attribute_tensors(attribute)


def _attribute_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    yield from (attribute.t, *attribute.tensors)
    for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)
    for graph in (attribute.g, *attribute.graphs):
        yield from _graph_tensors(graph)


def _spec(value: ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        raise InputError(
            f"{value.name!r} cannot be served",
            seen=value.type.WhichOneof("value") or "no type",
            valid="a tensor with a known number of dimensions",
            hint="export the model with plain tensors (for scikit-learn: zipmap=False)",
        )
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else DYNAMIC for dim in tensor.shape.dim
    )
    symbol = tensor.shape.dim[0].dim_param if shape else ""
    return TensorSpec(value.name, tensor.elem_type, shape, symbol)


TEXT = "text"


def of_text(graph: Signature) -> Signature:
    """Return the inputs and outputs of a graph of tokens with the tokenizer before it."""
    text = TensorSpec(TEXT, TensorProto.STRING, (DYNAMIC, 1), graph.inputs[0].batch_symbol)
    return replace(graph, inputs=(text,), backend=TEXT_BACKEND)
