"""The steps of a pipeline: Prefect tasks around plain functions."""
