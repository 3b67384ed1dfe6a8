"""The training loop, and how Ray Train runs it."""
