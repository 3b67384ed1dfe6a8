"""Client of streaming models: requests, and answers that arrive in pieces."""
