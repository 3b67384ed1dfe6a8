"""What `millrace up` runs and supervises on this machine."""
