"""A batch job on the machine of the online models: it gives way to their latency goals."""
