"""TensorRT engines: what they are built for, and how one is answered with."""
