"""The OpenAI-compatible HTTP server, for language models behind Triton."""
