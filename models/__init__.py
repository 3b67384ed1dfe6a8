"""Model families, frozen specs, dataset tables, the training loop and the registry."""
