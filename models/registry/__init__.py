"""MLflow: tracking, and registered versions with their files and signatures."""
