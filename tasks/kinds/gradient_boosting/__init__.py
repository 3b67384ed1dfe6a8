"""Trees that are boosted, by XGBoost."""
