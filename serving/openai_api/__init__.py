"""The OpenAI-compatible HTTP server for language models that Triton serves."""
