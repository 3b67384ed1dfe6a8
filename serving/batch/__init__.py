"""Batch inference: scores every row of an input once, and commits all rows at once."""
