"""Compares two versions by their answers to the same rows."""
