"""Prefect flows and the command line: order and decisions only."""
