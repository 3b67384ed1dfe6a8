"""The services that `millrace up` runs and supervises on this machine."""
