"""What only one kind of model knows of the line."""
