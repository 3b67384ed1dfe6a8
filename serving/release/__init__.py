"""Releases, which make every Triton replica serve the version that a model's alias points to."""
