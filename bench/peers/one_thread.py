"""The session of every peer: ONNX Runtime with one thread, like Triton's.

This file and the programs `serve_*.py` run in the environment of the peers.
"""

import onnxruntime


def session(model: str) -> onnxruntime.InferenceSession:
    """Open a model's session on the CPU."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
