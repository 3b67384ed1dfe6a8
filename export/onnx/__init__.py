"""ONNX forms: exported from PyTorch, converted, and searched for in mixed precision."""
