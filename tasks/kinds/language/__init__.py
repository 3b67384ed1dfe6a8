"""Steps of the line of a language model: tokens, training, forms, registry."""
