"""Training of smaller models: distillation, pruning, quantization-aware training."""
