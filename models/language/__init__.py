"""Causal language models: their data, their decoders and how they are trained."""
