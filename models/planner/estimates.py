"""The quantities that are estimated and measured, and the names of their terms.

A quantity is a sum of terms. A term is what a part of the work takes at the machine's figures, so a
weight of 1 says that the figure holds; see `fit.py`. What Python does beside the library that
computes is measured by how fast the machine runs Python.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from millrace.models.planner.fit import Bounds, Fit, Terms
from millrace.models.planner.quantity import Quantity, Unit, estimated, format_value

Name = Literal[
    "training_step",
    "training_memory",
    "online_call",
    "online_unit",
    "online_memory",
    "batch_job",
]


@dataclass(frozen=True)
class Estimated:
    """A quantity that is estimated before a run and measured in it.

    Attributes:
        words: what it is.
        unit: its unit.
        terms: the names of its terms.
        bounds: smallest and largest weight of terms, where small runs alone say too little: bytes
            that are counted are there at least once, no program multiplies faster than the measured
            rate or reads weights faster than the memory, and no cache is slower than that.
    """

    words: str
    unit: Unit
    terms: tuple[str, ...]
    bounds: Bounds = field(default_factory=dict)


_AT_LEAST_ONCE = (1.0, math.inf)
_TIMED: Bounds = {
    "operations": _AT_LEAST_ONCE,
    "weights": _AT_LEAST_ONCE,
    "cached": (0.0, 1.0),
    "integer_cached": (0.0, 1.0),
}
_STARTED = ("step", "call", "calls", "job", "rounds")
_WEIGHTS = ("weights", "cached", "integer_cached")
_CALL = ("operations", "functions", *_WEIGHTS, "activations", "kernels", "quantization", "call")
TREES, DECODER = "tree_", "decoder_"
QUANTITIES: Mapping[Name, Estimated] = {
    "training_step": Estimated(
        "time of a training step",
        "seconds",
        (
            *("operations", "memory", "kernels", "gradients", "step", "rows", "messages"),
            *("tree_cells", "tree_binning", "tree_rounds", "tree_messages"),
        ),
        bounds=_TIMED,
    ),
    "training_memory": Estimated(
        "peak memory of a training worker",
        "bytes",
        (
            *("runtime", "text_runtime", "tree_runtime", "decoder_runtime"),
            *("states", "activations", "data"),
        ),
        bounds=dict.fromkeys(("states", "activations", "data"), _AT_LEAST_ONCE),
    ),
    "online_call": Estimated(
        "latency of one row, or to the second token",
        "seconds",
        (*_CALL, "tree_walk", "decoder_kernels", "decoder_call"),
        bounds=_TIMED,
    ),
    "online_unit": Estimated(
        "time of a row or token at full load",
        "seconds",
        (*_CALL, "tree_walk", "decoder_kernels", "decoder_call"),
        bounds=_TIMED,
    ),
    "online_memory": Estimated(
        "peak memory of a serving process",
        "bytes",
        ("runtime", "decoder_runtime", "weights", "activations"),
        bounds={"weights": _AT_LEAST_ONCE},
    ),
    "batch_job": Estimated(
        "time of a batch job",
        "seconds",
        (
            *("operations", "functions", "memory", *_WEIGHTS, "kernels", "quantization"),
            *("calls", "rows", "job", "tree_walk"),
            *("decoder_kernels", "decoder_calls", "decoder_job"),
        ),
        bounds=_TIMED,
    ),
}
_FIXED = tuple(prefix + name for name in _STARTED for prefix in ("", TREES, DECODER))
"""Terms that are the same for a small and for a large model."""
ONLY_MEASURED = ("rows", "messages", "tree_messages", *_FIXED)
"""Terms of what a machine's figures do not say."""
UNFITTED: Mapping[Name, Fit] = {
    name: Fit(
        {term: 0.0 if term in ONLY_MEASURED else 1.0 for term in each.terms},
        low=0.0,
        high=float("inf"),
        rows=0,
        region={},
    )
    for name, each in QUANTITIES.items()
}
"""The machine's figures as they are, which leave out what only a measurement shows."""
LEAST_SHARE = 0.1
"""Share of an estimate from which a term counts as a part that may be extrapolated."""
UNMEASURED = "the machine's figures, not fitted: no interval"
Fits: TypeAlias = Mapping[Name, Fit]
"""What was fitted on measurements of a machine, by quantity."""


def estimate_quantity(
    name: Name, words: str, terms: Terms, fits: Fits, parts: Mapping[str, float] | None = None
) -> Quantity:
    """Return an estimated quantity, with its terms as the formula.

    Args:
        name: the quantity.
        words: what it is, behind its value.
        terms: the terms of the estimate.
        fits: the fits of the machine; a quantity without one is estimated by its figures.
        parts: what the formula shows instead of the terms.
    """
    fit, unit = fits.get(name, UNFITTED[name]), QUANTITIES[name].unit
    weighted = {each: weight * terms[each] for each, weight in fit.weights.items()}
    formula = " + ".join(
        f"{each} {format_value(value, unit)}"
        for each, value in (parts or weighted).items()
        if value
    )
    source = f"fitted on {fit.rows} measurements" if fit.rows else UNMEASURED
    estimate = replace(fit.estimate(terms), extrapolated=_beyond(fit, terms, unit))
    return estimated(words, estimate, unit, formula, source)


def _beyond(fit: Fit, terms: Terms, unit: Unit) -> tuple[str, ...]:
    """Return in words the terms that are larger than in any measured run, and count."""
    value = fit.estimate(terms).value
    return tuple(
        f"{name} {format_value(terms[name], unit)}, in the measured runs at most "
        f"{format_value(most, unit)}"
        for name, (_, most) in fit.region.items()
        if name not in _FIXED
        and terms[name] > most * 1.001
        and fit.weights[name] * terms[name] > LEAST_SHARE * value
    )


def rate_of(whole: Quantity, unit: str, units: float = 1.0) -> Quantity:
    """Return the rate that follows from the time of some units."""
    return Quantity(
        "",
        units / whole.value,
        "per second",
        f"{units:,.0f} ÷ ({whole.formula})",
        whole.source,
        units / whole.high if whole.high else None,
        units / whole.low if whole.low else None,
        of=unit,
        notes=whole.notes,
    )
