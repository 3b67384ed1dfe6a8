"""The parts of a pipeline file, one module each; `millrace.models.pipeline` puts them together."""
