"""Models that answer rows with one tensor."""
