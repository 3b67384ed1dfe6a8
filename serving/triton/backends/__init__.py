"""Python-based Triton backends. Triton runs them in its own processes; no code imports them."""
