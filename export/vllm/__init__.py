"""vLLM as the engine that measures a variant on a GPU."""
