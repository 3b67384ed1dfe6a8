"""The kind `language`: its steps from tokens over training and variants to the registry."""
