"""The quantities that are estimated and measured, and the terms of each.

A quantity is a sum of terms. A term is what a part of the work takes at the machine's figures, so a
weight of 1 says that the figure holds; see `fit.py`. The start of an operation, as measured on the
machine, is also the measure of what Python does beside it: a slower core does both more slowly.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.fit import Fit, Terms
from millrace.models.planner.parallelism import all_reduce_bytes
from millrace.models.planner.quantity import Quantity, Unit, estimated, format_value
from millrace.models.planner.work import ServingWork, TrainingWork, Variant

Name = Literal[
    "training_step",
    "training_memory",
    "online_call",
    "online_unit",
    "online_memory",
    "batch_job",
]
MANY_STARTS = 1000
"""Starts of an operation that the fixed costs of a step or a call are counted in."""


@dataclass(frozen=True)
class Estimated:
    """A quantity that is estimated before a run and measured in it.

    Attributes:
        words: what it is.
        unit: its unit.
        terms: the names of its terms.
    """

    words: str
    unit: Unit
    terms: tuple[str, ...]


_CALL = ("operations", "weights", "activations", "kernels", "call")
QUANTITIES: Mapping[Name, Estimated] = {
    "training_step": Estimated(
        "time of a training step",
        "seconds",
        ("operations", "memory", "kernels", "gradients", "step", "rows", "messages"),
    ),
    "training_memory": Estimated(
        "peak memory of a training worker",
        "bytes",
        ("runtime", "states", "activations", "data"),
    ),
    "online_call": Estimated("latency of one row or token", "seconds", _CALL),
    "online_unit": Estimated("time of a row or token at full load", "seconds", _CALL),
    "online_memory": Estimated(
        "peak memory of a serving process", "bytes", ("runtime", "weights", "activations")
    ),
    "batch_job": Estimated(
        "time of a batch job",
        "seconds",
        ("operations", "memory", "kernels", "calls", "rows", "job"),
    ),
}
RUNTIME_BYTES, SERVING_BYTES = 400e6, 100e6
"""Memory of a process before it has a model: a worker's Python, torch and Ray; ONNX Runtime's."""


def training_step_terms(training: TrainingWork, machines: Machines) -> dict[str, float]:
    """Return the terms of a step, in seconds.

    Workers of one CPU share its cores and its bandwidth.
    """
    device = machines.device
    sharing = training.workers if device.is_cpu else 1
    flops = training.flops_per_unit * training.step_units
    start = device.kernel_seconds
    sent = all_reduce_bytes(training.gradient_bytes, training.workers)
    return {
        "operations": flops * sharing / device.rate(training.data_type),
        "memory": training.bytes_per_step * sharing / device.memory_bandwidth,
        "kernels": training.kernels * start,
        "gradients": sent * sharing / (device.link_bandwidth or device.memory_bandwidth),
        "step": MANY_STARTS * start,
        "rows": training.step_units * start,
        "messages": MANY_STARTS * start if training.workers > 1 else 0.0,
    }


def training_memory_terms(training: TrainingWork) -> dict[str, float]:
    """Return the terms of a worker's peak memory, in bytes."""
    parts = training.memory
    states = sum(parts.get(name, 0.0) for name in ("weights", "gradients", "optimizer", "trees"))
    activations = sum(parts.get(name, 0.0) for name in ("activations", "logits"))
    return {
        "runtime": RUNTIME_BYTES,
        "states": states,
        "activations": activations,
        "data": sum(parts.values()) - states - activations,
    }


def serving_memory_terms(serving: ServingWork, variant: Variant) -> dict[str, float]:
    """Return the terms of the peak memory of a process that serves all instances, in bytes."""
    return {
        "runtime": SERVING_BYTES,
        "weights": serving.instances * variant.weight_bytes,
        "activations": serving.instances * serving.bytes_per_unit * serving.call_units,
    }


def call_terms(
    serving: ServingWork, variant: Variant, units: float, machines: Machines
) -> dict[str, float]:
    """Return the terms of a call of the model with `units` rows or tokens, in seconds.

    An instance on a CPU has its threads' share of the cores, and no more than its share of all
    instances.
    """
    device = machines.device
    sharing = max(serving.instances, device.cores / serving.threads) if device.cores else 1.0
    start = device.kernel_seconds
    return {
        "operations": serving.flops_per_unit * units * sharing / device.rate(variant.data_type),
        "weights": variant.weight_bytes * sharing / device.memory_bandwidth,
        "activations": serving.bytes_per_unit * units * sharing / device.memory_bandwidth,
        "kernels": serving.kernels * start,
        "call": MANY_STARTS * start,
        "rows": units * start,
    }


def unit_terms(serving: ServingWork, variant: Variant, machines: Machines) -> dict[str, float]:
    """Return the terms of the time of a unit at full load, in seconds."""
    units = serving.call_units
    done = units * serving.instances
    terms = call_terms(serving, variant, units, machines)
    return {name: seconds / done for name, seconds in terms.items()}


def job_terms(
    serving: ServingWork, variant: Variant, units: float, calls: float, machines: Machines
) -> dict[str, float]:
    """Return the terms of a batch job, in seconds.

    Args:
        serving: the job; its instances are the actors.
        variant: the variant that scores.
        units: rows, or tokens read and generated.
        calls: calls of the model over all actors; of a decoder, its steps.
        machines: the machines.
    """
    device, actors = machines.device, serving.instances
    one = call_terms(serving, variant, 1, machines)
    start = device.kernel_seconds
    return {
        "operations": one["operations"] * units / actors,
        "memory": (one["activations"] * units + one["weights"] * calls) / actors,
        "kernels": one["kernels"] * calls / actors,
        "calls": MANY_STARTS * start * calls / actors,
        "rows": units * start,
        "job": MANY_STARTS**2 * start,
    }


_ONLY_MEASURED = ("step", "call", "calls", "rows", "messages", "job")
"""Terms of what a machine's figures do not say."""
UNFITTED: Mapping[Name, Fit] = {
    name: Fit(
        {term: 0.0 if term in _ONLY_MEASURED else 1.0 for term in each.terms},
        low=0.0,
        high=float("inf"),
        rows=0,
        region={},
    )
    for name, each in QUANTITIES.items()
}
"""The machine's figures as they are, which leave out what only a measurement shows."""
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
    return estimated(words, fit.estimate(terms), unit, formula, source)


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
