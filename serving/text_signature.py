"""What a client sees of a model that reads text: the step that makes tokens comes before its graph.

text      string  [rows, 1]    in
label     string  [rows, 1]    out, the most probable class; not where a number is predicted
and the graph's own output
"""

from dataclasses import replace

from onnx import TensorProto

from serving.onnx_graph import DYNAMIC, Signature, TensorSpec

BACKEND = "text_onnxruntime"
TEXT, LABEL = "text", "label"


def of_text(graph: Signature, *, labelled: bool) -> Signature:
    """Return the inputs and outputs of a graph of tokens with the tokenizer before it.

    Args:
        graph: the graph's own.
        labelled: whether it tells classes.
    """
    batch = graph.inputs[0].batch_symbol
    text = TensorSpec(TEXT, TensorProto.STRING, (DYNAMIC, 1), batch)
    label = TensorSpec(LABEL, TensorProto.STRING, (DYNAMIC, 1), batch)
    outputs = (label, *graph.outputs) if labelled else graph.outputs
    return replace(graph, inputs=(text,), outputs=outputs, backend=BACKEND)
