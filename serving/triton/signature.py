"""What a client sees of a graph: its own tensors, or what stands before it."""

from millrace.models.common.errors import InputError
from millrace.serving.triton.onnx_graph import Signature, read_signature
from millrace.serving.triton.text_signature import of_text
from millrace.serving.triton.version_folder import ONNX, Artifact


def signature_of(artifact: Artifact) -> Signature:
    """Return inputs, outputs and backend of a version.

    Raises:
        InputError: its files are nothing that Triton can serve, or it is no graph.
    """
    if artifact.kind != "graph":
        raise InputError(f"a {artifact.kind} model has no tensors of its own", valid="a graph")
    found = read_signature(artifact.files[ONNX])
    return found if artifact.tokenizer is None else of_text(found)
