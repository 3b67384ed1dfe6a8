"""Latencies, as observations that a test may take for independent."""

import math

BLOCK = 32
"""Latencies that become one observation, their mean: those of requests which wait in one queue
depend on each other, and a variance of single ones would be too small (batch means; Law, Simulation
Modeling and Analysis, section 9.5.3).
"""


class Blocks:
    """Successive latencies of one version, of which only the sums over whole blocks are kept."""

    def __init__(self) -> None:
        self._count, self._total = 0, 0.0

    def add(self, seconds: float) -> dict[str, float]:
        """Take one in, and return by how much the counters grow.

        They never fall, so it is the logarithm of microseconds, and of one at least.
        """
        self._count += 1
        self._total += math.log(max(seconds * 1e6, 1.0))
        if self._count < BLOCK:
            return {}
        mean, self._count, self._total = self._total / BLOCK, 0, 0.0
        return {
            "log_latency_blocks": 1.0,
            "log_latency": mean,
            "log_latency_squares": mean * mean,
        }
