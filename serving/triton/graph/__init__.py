"""How Triton serves models that are one ONNX graph."""
