"""What a model needs, takes and costs: formulas over small specs, without torch."""
