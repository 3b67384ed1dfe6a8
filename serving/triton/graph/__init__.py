"""ONNX graphs on Triton."""
