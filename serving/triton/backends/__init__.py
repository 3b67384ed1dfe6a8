"""Python-based Triton backends; Triton runs them in processes of its own, nothing imports them."""
