"""What starts a release: MLflow's webhook, and a watch."""
