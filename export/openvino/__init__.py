"""Conversion of transformers decoders to OpenVINO."""
