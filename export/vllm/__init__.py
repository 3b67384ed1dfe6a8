"""vLLM, where it measures a variant on a GPU."""
