"""Steps of a batch job: its run in MLflow, its drift and its agreement."""
