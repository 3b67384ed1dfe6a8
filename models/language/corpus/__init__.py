"""Documents as packed sequences of tokens."""
