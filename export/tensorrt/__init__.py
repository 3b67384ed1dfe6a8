"""TensorRT engines: the sizes they are built for, and a session to run them."""
