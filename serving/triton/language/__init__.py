"""Causal language models behind Triton: how they are configured, and how they are asked."""
