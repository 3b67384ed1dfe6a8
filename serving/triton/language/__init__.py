"""Causal language models behind Triton: their configurations and their clients."""
