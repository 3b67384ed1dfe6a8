"""MLflow: tracking, registered versions, their files and signatures."""
