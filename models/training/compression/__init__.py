"""Smaller models by training: distillation, pruning, quantization-aware training."""
