"""Causal language models: their data, decoders and training."""
