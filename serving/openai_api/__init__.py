"""The OpenAI-compatible door: language models behind Triton, by HTTP."""
