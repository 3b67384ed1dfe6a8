"""How Triton serves causal language models."""
