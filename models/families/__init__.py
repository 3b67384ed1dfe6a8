"""Families of models: how a network is built, and the objective that it is trained for."""
