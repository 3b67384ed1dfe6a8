"""The session that every other server opens: ONNX Runtime with one thread, as Triton's.

The files `serve_*.py` and this one run in the environment of the other servers, each as a program.
"""

import onnxruntime


def session(model: str) -> onnxruntime.InferenceSession:
    """Open a model's session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
