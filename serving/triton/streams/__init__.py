"""Answers that come in pieces: requests to a model that streams, and what comes back."""
