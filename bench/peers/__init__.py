"""P11: Triton behind its guard, beside other model servers, over HTTP and JSON."""

from bench.peers.beside import rows

__all__ = ["rows"]
