"""How Triton serves an ONNX graph: the ONNX Runtime backends, and the tensors that a client sees.

Inputs and outputs are read from the ONNX file. The model is not run, and no other file is opened.

A text model's ONNX graph reads tokens, so the backend runs the tokenizer before the graph. Clients
send `text`, [rows, 1], and get the output of the graph. To get class names, they request the
output's `classification`.

An output of strings would be simpler for clients, but it crashes the whole server: Triton 2.51
divides by the size of an element when a client requests the classification, and a string has no
size.
"""

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import uses_external_data
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.digest import ONNX_FILE
from millrace.models.common.errors import InputError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.triton.model_config import (
    DYNAMIC,
    TEXT_BACKEND,
    Signature,
    TensorSpec,
    model_config,
)
from millrace.serving.triton.version_folder import Artifact

TEXT = "text"


class TritonGraph:
    """How Triton serves a model that is one ONNX graph; a `TritonKind`."""

    def config(
        self,
        name: str,
        artifact: Artifact,
        *,
        version_policy: pb.ModelVersionPolicy,
        parameters: Mapping[str, str] | None = None,
    ) -> pb.ModelConfig:
        """Return the configuration, with the tensors of the ONNX graph and dynamic batching."""
        return model_config(
            name,
            signature_of(artifact),
            artifact.serving,
            version_policy=version_policy,
            labels=artifact.labels,
            parameters=parameters,
        )

    def check(self, artifact: Artifact) -> None:
        """Raise InputError if Triton cannot serve the ONNX file."""
        signature_of(artifact)

    def backend_files(self, artifact: Artifact, folder: Path) -> Mapping[str, str]:
        """Return no files, because the backend reads only the version's own files."""
        return {}

    def reserved_names(self, artifact: Artifact) -> Collection[str]:
        """Return no names, because the backend has no files of its own."""
        return ()

    def special_backend(self, artifact: Artifact) -> None:
        """Return None, because the ONNX Runtime backends come with Triton or with Millrace."""
        return

    def interface(self, artifact: Artifact) -> Hashable:
        """Return the backend, the inputs and the outputs."""
        return signature_of(artifact).served

    def signature(self, artifact: Artifact) -> Signature:
        """Return the inputs, the outputs and the backend."""
        return signature_of(artifact)


def signature_of(artifact: Artifact) -> Signature:
    """Return the inputs, the outputs and the backend of a version.

    Raises:
        InputError: Triton cannot serve the version's files, or the model is not an ONNX graph.
    """
    if ONNX_FILE not in artifact.files:
        raise InputError(
            f"a {artifact.kind} model is not an ONNX graph, so its inputs and outputs are unknown",
            valid="a model that is one ONNX graph",
        )
    found = read_signature(artifact.files[ONNX_FILE])
    return found if artifact.tokenizer is None else of_text(found)


def artifact_of_graph(
    onnx: Path,
    sha256: str,
    labels: tuple[str, ...] = (),
    serving: ServingSpec | None = None,
    tokenizer: str | None = None,
    rules: str | None = None,
    kind: str = "graph",
    columns: str | None = None,
) -> Artifact:
    """Return the artifact of a model that is one ONNX file.

    Args:
        onnx: the path of the ONNX file.
        sha256: the digest of the file.
        labels: class names, in the order of the output's columns.
        serving: the serving settings; None: the defaults.
        tokenizer: contents of `tokenizer.json`, for a text model.
        rules: contents of `features.json`, for a model with column inputs.
        kind: the kind of model.
        columns: contents of `columns.json`; None: no columns by name.
    """
    serving = serving or ServingSpec()
    files = {ONNX_FILE: onnx}
    return Artifact(
        *(files, sha256, kind, labels, serving, tokenizer), rules=rules, columns=columns
    )


def read_signature(path: Path) -> Signature:
    """Return the inputs and outputs of the ONNX file at `path`.

    Raises:
        InputError: the file is not ONNX, has weights in other files, or has an input or output that
            Triton cannot serve.
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
                hint="save the model with save_as_external_data=False",
            )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor: weights, sparse weights, attributes; also in subgraphs and functions."""
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
            f"the input or output {value.name!r} cannot be served",
            seen=value.type.WhichOneof("value") or "no type",
            valid="a tensor with a known number of dimensions",
            hint="export the model with plain tensors (for scikit-learn: zipmap=False)",
        )
    shape = tuple(
        dim.dim_value if dim.HasField("dim_value") else DYNAMIC for dim in tensor.shape.dim
    )
    symbol = tensor.shape.dim[0].dim_param if shape else ""
    return TensorSpec(value.name, tensor.elem_type, shape, symbol)


def of_text(graph: Signature) -> Signature:
    """Return the signature of a text model: the input `text` replaces the graph's token input."""
    text = TensorSpec(TEXT, TensorProto.STRING, (DYNAMIC, 1), graph.inputs[0].batch_symbol)
    return replace(graph, inputs=(text,), backend=TEXT_BACKEND)
