"""Reports on runs in MLflow and Prefect."""
