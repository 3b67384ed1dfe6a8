"""The pipeline file: its parts, one module each, and how it is read and refused."""
