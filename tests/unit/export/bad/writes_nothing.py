"""Ends well, and has written no model."""
