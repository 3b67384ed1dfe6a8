"""Ray: one for a command or for all commands beside `millrace up`, a cluster, and what they run."""
