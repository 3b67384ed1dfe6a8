"""Families of models: how a network is built and what it is trained for."""
