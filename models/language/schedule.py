"""The learning rate as a function of how much of the run is done; so it needs no state."""

import math


def rate_at(progress: float, peak: float, warmup_ratio: float) -> float:
    """Return the learning rate: a linear warm-up, then a cosine to zero.

    After Loshchilov & Hutter 2017, "SGDR", without restarts.

    Args:
        progress: share of the run that is done, 0 to 1.
        peak: the highest rate.
        warmup_ratio: share of the run that warms up.
    """
    if progress < warmup_ratio:
        return peak * progress / warmup_ratio
    left = (progress - warmup_ratio) / max(1.0 - warmup_ratio, 1e-12)
    return peak * 0.5 * (1.0 + math.cos(math.pi * left))
