"""What a run shows in MLflow and Prefect."""
