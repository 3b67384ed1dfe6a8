"""Array types for annotations (docstrings give shape and dtype), and evenly spread indices."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]


def spread(count: int, most: int) -> Indices:
    """Return at most `most` indices below `count`, evenly spread, ascending: int64."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))
