"""Steps of the line of a language model: tokens, training, variants, registry."""
