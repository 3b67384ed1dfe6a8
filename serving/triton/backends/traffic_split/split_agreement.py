"""Whether two versions answered a request alike, row by row."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


def agreement(ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float) -> Flags:
    """Return for each row whether every output of one version agrees with the other's.

    Args:
        ours: the champion's outputs, `[rows, …]` each.
        theirs: the candidate's.
        tolerance: relative difference up to which two numbers agree.
    """
    outputs = [_output(array, theirs.get(name), tolerance) for name, array in ours.items()]
    return np.asarray(np.logical_and.reduce(outputs), dtype=bool)


def _output(ours: Array, theirs: Array | None, tolerance: float) -> Flags:
    rows = len(ours) if ours.ndim else 1
    if theirs is None or theirs.shape != ours.shape:
        return np.zeros(rows, dtype=bool)
    alike = _alike(ours.reshape(rows, -1), theirs.reshape(rows, -1), tolerance)
    return np.asarray(alike.reshape(rows, -1).all(axis=1), dtype=bool)


def _alike(ours: Array, theirs: Array, tolerance: float) -> Array:
    """Compare `[rows, columns]`: scores by the best column, single numbers by their distance."""
    if ours.dtype.kind != "f":
        return np.asarray(ours == theirs)
    if ours.shape[1] > 1:
        finite = np.isfinite(theirs).all(axis=1) | ~np.isfinite(ours).all(axis=1)
        return np.asarray((ours.argmax(axis=1) == theirs.argmax(axis=1)) & finite)
    allowed = tolerance * np.maximum(np.abs(ours), np.abs(theirs))
    return np.asarray((np.abs(ours - theirs) <= allowed) | (ours == theirs))
