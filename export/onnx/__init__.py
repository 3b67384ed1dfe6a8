"""ONNX variants: exported from PyTorch, converted, and searched for in mixed precision."""
