"""The triggers of a release: MLflow's webhook, and a watch."""
