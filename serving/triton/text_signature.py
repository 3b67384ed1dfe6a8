"""What a client sees of a model that reads text: the step that makes tokens comes before its graph.

text   string  [rows, 1]    in
and the graph's own output, whose classes a client gets by name as Triton gives them: it asks for
the `classification` of the output.

An output of strings would be plainer for clients, but Triton 2.51 divides by the size of an element
when somebody asks for its classification, and a string has none: the whole server ends.
"""

from dataclasses import replace

from onnx import TensorProto

from millrace.serving.triton.onnx_graph import DYNAMIC, Signature, TensorSpec

BACKEND = "text_onnxruntime"
TEXT = "text"


def of_text(graph: Signature) -> Signature:
    """Return the inputs and outputs of a graph of tokens with the tokenizer before it."""
    text = TensorSpec(TEXT, TensorProto.STRING, (DYNAMIC, 1), graph.inputs[0].batch_symbol)
    return replace(graph, inputs=(text,), backend=BACKEND)
