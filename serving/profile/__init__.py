"""The configuration that meets a latency goal: a model of the batcher, and a proof."""
