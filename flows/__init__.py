"""Prefect flows and the command line. They order and decide; tasks do the work."""
