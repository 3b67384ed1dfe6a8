"""Laws of latency with a known 99th percentile, of which proofs are simulated."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import norm

Law = Callable[[np.random.Generator, int], NDArray[np.float64]]
P99 = float(norm.ppf(0.99))


def _autocorrelated(drawn: np.random.Generator, many: int) -> NDArray[np.float64]:
    """Lognormal latencies of which each depends on the one before by 0.9."""
    noise = drawn.normal(size=many) * np.sqrt(1 - 0.9**2)
    noise[0] = drawn.normal()
    latencies: NDArray[np.float64] = np.exp(lfilter([1], [1, -0.9], noise))
    return latencies


def _bimodal(drawn: np.random.Generator, many: int) -> NDArray[np.float64]:
    slow = np.where(drawn.random(many) < 0.95, 1.0, 10.0)
    latencies: NDArray[np.float64] = slow * (1 + 0.1 * drawn.random(many))
    return latencies


def _bursts(drawn: np.random.Generator, many: int) -> NDArray[np.float64]:
    """A tenth of the requests is slow, in bursts of ten on average."""
    lengths = drawn.geometric([1 / 90, 1 / 10], size=(many // 10 + 60, 2))
    is_slow = np.repeat(np.tile([False, True], len(lengths)), lengths.ravel())[-many:]
    slow, fast = 10 * (1 + drawn.random(many)), 1 + 0.1 * drawn.random(many)
    latencies: NDArray[np.float64] = np.where(is_slow, slow, fast)
    return latencies


LAWS: dict[str, tuple[Law, float]] = {
    "exponential": (lambda drawn, many: drawn.exponential(size=many), float(np.log(100))),
    "lognormal": (lambda drawn, many: np.exp(drawn.normal(size=many)), float(np.exp(P99))),
    "pareto 2": (lambda drawn, many: 1 + drawn.pareto(2, many), 100 ** (1 / 2)),
    "pareto 3": (lambda drawn, many: 1 + drawn.pareto(3, many), 100 ** (1 / 3)),
    "bimodal": (_bimodal, 10 * 1.08),
    "bursts": (_bursts, 10 * 1.9),
    "autocorrelated": (_autocorrelated, float(np.exp(P99))),
}
"""Latencies, and their 99th percentile."""
