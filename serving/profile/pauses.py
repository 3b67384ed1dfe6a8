"""Which of a run's requests were sent while the machine did not pause."""

import numpy as np
from numpy.typing import NDArray

PARTS, PAUSE = 5, 3.0
"""A run is looked at in so many parts. One with a p99 so many times that of the median part is left
out: the machine paused, and the p99 of the run would be the pause's."""


def is_usual(seconds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which requests are in a part without a pause, bool `[n]`.

    A queue that grows is no pause: its last part takes twice as long as the median one.

    Args:
        seconds: float64 `[n]`, latencies in the order of the requests; at least one.
    """
    parts = np.array_split(seconds, min(PARTS, len(seconds)))
    p99 = np.array([np.quantile(each, 0.99, method="higher") for each in parts])
    return np.repeat(p99 <= PAUSE * np.median(p99), [len(each) for each in parts])
