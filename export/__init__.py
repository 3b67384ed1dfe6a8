"""Checkpoint in, artifact and certificate out."""
