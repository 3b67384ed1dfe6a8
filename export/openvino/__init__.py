"""A decoder of transformers as an OpenVINO model."""
