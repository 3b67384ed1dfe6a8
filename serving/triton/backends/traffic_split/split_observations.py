"""Observations for the judge of a rollout: agreement of answers, and blocks of latencies."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]

BLOCK = 32
"""Number of latencies whose mean is one observation. Latencies of requests in one queue depend on
each other, so a variance from single latencies would be too small (batch means; Law, Simulation
Modeling and Analysis, section 9.5.3).
"""


def compare_rows(
    champion: Mapping[str, Array], candidate: Mapping[str, Array], tolerance: float
) -> Flags:
    """Return, for each row, whether all outputs of the two versions agree.

    Args:
        champion: the champion's outputs by name, each `[rows, …]`.
        candidate: the candidate's outputs by name.
        tolerance: relative difference up to which two numbers agree.
    """
    outputs = [
        _compare_output(array, candidate.get(name), tolerance) for name, array in champion.items()
    ]
    return np.asarray(np.logical_and.reduce(outputs), dtype=bool)


def _compare_output(champion: Array, candidate: Array | None, tolerance: float) -> Flags:
    rows = len(champion) if champion.ndim else 1
    if candidate is None or candidate.shape != champion.shape:
        return np.zeros(rows, dtype=bool)
    alike = _compare_values(champion.reshape(rows, -1), candidate.reshape(rows, -1), tolerance)
    return np.asarray(alike.reshape(rows, -1).all(axis=1), dtype=bool)


def _compare_values(champion: Array, candidate: Array, tolerance: float) -> Array:
    """Compare `[rows, columns]`: scores by the best column, single numbers by `tolerance`."""
    if champion.dtype.kind != "f":
        return np.asarray(champion == candidate)
    if champion.shape[1] > 1:
        finite = np.isfinite(candidate).all(axis=1) | ~np.isfinite(champion).all(axis=1)
        return np.asarray((champion.argmax(axis=1) == candidate.argmax(axis=1)) & finite)
    allowed = tolerance * np.maximum(np.abs(champion), np.abs(candidate))
    return np.asarray((np.abs(champion - candidate) <= allowed) | (champion == candidate))


class LatencyBlocks:
    """Sums up successive latencies of one version in blocks of `BLOCK`.

    Args:
        bound: seconds from which an answer is late; infinite if none is.
    """

    def __init__(self, bound: float = math.inf) -> None:
        self._bound = bound
        self._count, self._total, self._late = 0, 0.0, 0

    def add(self, seconds: float) -> dict[str, float]:
        """Add a latency, and return the increments of the counters: empty until a block is full.

        The logarithm is of microseconds, at least 1, because counters cannot decrease.
        """
        self._count += 1
        self._total += math.log(max(seconds * 1e6, 1.0))
        self._late += seconds > self._bound
        if self._count < BLOCK:
            return {}
        mean, late = self._total / BLOCK, float(self._late)
        self._count, self._total, self._late = 0, 0.0, 0
        return {
            "log_latency_blocks": 1.0,
            "log_latency": mean,
            "log_latency_squares": mean * mean,
            "timed_answers": float(BLOCK),
            "late_answers": late,
            "late_answers_squares": late * late,
        }
