"""A release: what the registry wants becomes what every replica serves."""
