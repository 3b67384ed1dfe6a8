"""Triton Inference Server: its process, its repository, its client."""
