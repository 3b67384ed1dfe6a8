"""The training loop and Ray Train around it."""
