"""Triton's repository, process and client, and the batch predictor."""
