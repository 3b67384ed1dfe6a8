"""vLLM, where it measures a form on a GPU."""
