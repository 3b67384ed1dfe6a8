"""What `millrace clean` removes, by kind, and why the rest stays."""
