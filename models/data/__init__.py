"""Datasets: reads and checks rows, and stores them as snapshots of a Delta table."""
