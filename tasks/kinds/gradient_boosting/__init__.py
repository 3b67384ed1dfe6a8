"""Gradient-boosted trees, by XGBoost."""
