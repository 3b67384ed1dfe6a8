"""Variants of a causal language model: made, measured and judged."""
