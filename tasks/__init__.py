"""The steps of the line: Prefect tasks around plain functions."""
