"""Triton Inference Server: its process, its model repository and its clients."""
