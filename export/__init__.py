"""Export: turns a checkpoint into an artifact with a certificate."""
