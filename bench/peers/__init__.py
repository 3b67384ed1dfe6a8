"""P11: Triton behind its guard, beside other servers of models, by HTTP and JSON."""

from bench.peers.beside import rows

__all__ = ["rows"]
