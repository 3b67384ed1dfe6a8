"""Datasets: read, checked, and kept as snapshots of a Delta table."""
