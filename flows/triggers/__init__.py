"""What starts a release: a webhook of MLflow's, and a watch."""
