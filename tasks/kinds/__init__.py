"""The parts of the platform that are specific to one kind of model."""
