"""Batch inference: every row of an input scored once, and committed at once."""
