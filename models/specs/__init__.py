"""The parts of a pipeline file, one module each; `models.pipeline` puts them together."""
