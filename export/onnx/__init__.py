"""ONNX variants: export from PyTorch, conversions, and a search for mixed precision."""
