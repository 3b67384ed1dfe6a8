"""The quantities that are estimated and measured, and the terms of each.

A quantity is a sum of terms. A term is what a part of the work takes at the machine's figures, so a
weight of 1 says that the figure holds; see `fit.py`. The start of an operation, as measured on the
machine, is also the measure of what Python does beside it: a slower core does both more slowly.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from millrace.models.planner.catalogue import Device, Machines
from millrace.models.planner.fit import Bounds, Fit, Terms
from millrace.models.planner.parallelism import all_reduce_bytes
from millrace.models.planner.quantity import Quantity, Unit, estimated, format_value
from millrace.models.planner.work import Engine, ServingWork, TrainingWork, Variant

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
        bounds: smallest and largest weight of terms, where small runs alone say too little: bytes
            that are counted are there at least once, and products take at least half, and in a
            batch job at most 1.5 times, of what they take at the measured rate.
    """

    words: str
    unit: Unit
    terms: tuple[str, ...]
    bounds: Bounds = field(default_factory=dict)

    @property
    def counted(self) -> tuple[str, ...]:
        """Terms that are there at least once."""
        return tuple(name for name, (least, _) in self.bounds.items() if least >= 1)


_AT_LEAST_ONCE = (1.0, math.inf)
_STARTED = ("step", "call", "calls", "job", "rounds")
_STATES = ("weights", "gradients", "gradient buckets", "optimizer", "trees")
_ACTIVATIONS = ("activations", "logits")
_CALL = ("operations", "weights", "activations", "kernels", "call")
_TREES, _DECODER = "tree_", "decoder_"
QUANTITIES: Mapping[Name, Estimated] = {
    "training_step": Estimated(
        "time of a training step",
        "seconds",
        (
            *("operations", "memory", "kernels", "gradients", "step", "rows", "messages"),
            *("tree_cells", "tree_rounds", "tree_messages"),
        ),
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
        "latency of one row or token",
        "seconds",
        (*_CALL, "tree_walk", "decoder_kernels", "decoder_call"),
        bounds={"operations": (0.5, math.inf)},
    ),
    "online_unit": Estimated(
        "time of a row or token at full load",
        "seconds",
        (*_CALL, "tree_walk", "decoder_kernels", "decoder_call"),
        bounds={"operations": (0.5, math.inf)},
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
            *("operations", "memory", "kernels", "calls", "rows", "job"),
            *("tree_walk", "decoder_kernels", "decoder_calls", "decoder_job"),
        ),
        bounds={"operations": (0.5, 1.5)},
    ),
}
RUNTIME_BYTES, SERVING_BYTES = 400e6, 100e6
"""Memory of a process before it has a model, about: a worker's Python, torch and Ray; that of ONNX
Runtime. On a CPU the weight of the term corrects it."""


def training_step_terms(training: TrainingWork, machines: Machines) -> dict[str, float]:
    """Return the terms of a step, in seconds.

    Workers of one CPU share its cores and its bandwidth. Of trees a step is a round.
    """
    device = machines.device
    sharing = training.workers if device.is_cpu else 1
    start, memory = device.kernel_seconds, device.memory_bandwidth
    moved = training.bytes_per_step * sharing / memory
    sent = all_reduce_bytes(training.gradient_bytes, training.workers)
    link = sent * sharing / _link_between(training.workers, device)
    together = MANY_STARTS * start if training.workers > 1 else 0.0
    terms = dict.fromkeys(QUANTITIES["training_step"].terms, 0.0)
    if training.engine == "xgboost":
        own = {"tree_cells": moved, "tree_rounds": MANY_STARTS * start, "tree_messages": together}
        return {**terms, **own}
    flops = training.flops_per_unit * training.step_units
    return {
        **terms,
        "operations": flops * sharing / device.rate(training.data_type),
        "memory": moved,
        "kernels": training.kernels * start,
        "gradients": link,
        "step": MANY_STARTS * start,
        "rows": training.items * start,
        "messages": together,
    }


def _link_between(workers: int, device: Device) -> float:
    """Return the bandwidth between workers: of the links in a node, of the network beyond it."""
    within = device.is_cpu or workers <= device.devices_per_node
    found = device.link_bandwidth if within else device.network_bandwidth
    return found or device.memory_bandwidth


def training_parts(training: TrainingWork, *, on_gpu: bool) -> dict[str, float]:
    """Return what is in a worker's memory at its peak, in bytes by part.

    On a GPU the allocator gives the memory of activations to the gradients, layer by layer in the
    backward pass, so the larger of both counts.
    """
    parts = {name: size for name, size in training.memory.items() if size}
    if not on_gpu:
        return parts
    gradients = parts.pop("gradients", 0.0)
    kept = sum(parts.pop(name, 0.0) for name in _ACTIVATIONS)
    return {**parts, ("activations" if kept >= gradients else "gradients"): max(kept, gradients)}


def training_memory_terms(
    training: TrainingWork, serves: Engine, *, on_gpu: bool = False
) -> dict[str, float]:
    """Return the terms of a worker's peak memory, in bytes; see `training_parts`.

    Args:
        training: the training.
        serves: the engine of the exported model, by which a decoder is known.
        on_gpu: whether the worker has a GPU, whose memory is meant.
    """
    parts = training_parts(training, on_gpu=on_gpu)
    passing = (*_ACTIVATIONS, "gradients") if on_gpu else _ACTIVATIONS
    states = sum(parts.get(name, 0.0) for name in _STATES if name not in passing)
    activations = sum(parts.get(name, 0.0) for name in passing)
    data = sum(parts.values()) - states - activations
    return {
        **dict.fromkeys(QUANTITIES["training_memory"].terms, 0.0),
        "text_runtime" if training.reads_texts else _runtime_of(serves): RUNTIME_BYTES,
        "states": states,
        "activations": activations,
        "data": data,
    }


def _runtime_of(engine: Engine) -> str:
    """Return the term of what a process needs before it has a model."""
    prefix = {"onnxruntime": "", "trees": _TREES, "openvino": _DECODER}[engine]
    return f"{prefix}runtime"


def serving_memory_terms(
    serving: ServingWork, variant: Variant, devices: int = 1
) -> dict[str, float]:
    """Return the terms of the peak memory of a process that serves instances, in bytes.

    Args:
        serving: the service or job.
        variant: the variant that answers.
        devices: devices that the instances are on.
    """
    instances = math.ceil(serving.instances / devices)
    runtime = "decoder_runtime" if serving.engine == "openvino" else "runtime"
    return {
        **dict.fromkeys(QUANTITIES["online_memory"].terms, 0.0),
        runtime: SERVING_BYTES,
        "weights": instances * variant.weight_bytes,
        "activations": instances * serving.bytes_per_unit * serving.call_units,
    }


def call_terms(
    serving: ServingWork, variant: Variant, units: float, machines: Machines
) -> dict[str, float]:
    """Return the terms of a call of the model with `units` rows or tokens, in seconds.

    An instance on a CPU has its threads' share of the cores, and no more than its share of all
    instances; on GPUs its share of those on its GPU.
    """
    device = machines.device
    if device.cores:
        sharing = max(serving.instances, device.cores / serving.threads)
    else:
        sharing = max(1.0, serving.instances / machines.count)
    start, memory = device.kernel_seconds, device.memory_bandwidth
    moved = serving.bytes_per_unit * units * sharing / memory
    terms = dict.fromkeys(QUANTITIES["online_call"].terms, 0.0)
    if serving.engine == "trees":
        return {**terms, "tree_walk": moved, "call": MANY_STARTS * start}
    prefix = _DECODER if serving.engine == "openvino" else ""
    return {
        **terms,
        "operations": serving.flops_per_unit * units * sharing / device.rate(variant.data_type),
        "weights": variant.weight_bytes * sharing / memory,
        "activations": moved,
        f"{prefix}kernels": serving.kernels * start,
        f"{prefix}call": MANY_STARTS * start,
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
    start, actors = machines.device.kernel_seconds, serving.instances
    one = call_terms(serving, variant, 1, machines)
    prefix = _DECODER if serving.engine == "openvino" else ""
    return {
        **dict.fromkeys(QUANTITIES["batch_job"].terms, 0.0),
        "operations": one["operations"] * units / actors,
        "memory": (one["activations"] * units + one["weights"] * calls) / actors,
        "tree_walk": one["tree_walk"] * units / actors,
        "rows": 0.0 if prefix else units * start,
        f"{prefix}kernels": one[f"{prefix}kernels"] * calls / actors,
        f"{prefix}calls": MANY_STARTS * start * calls / actors,
        f"{prefix}job": MANY_STARTS**2 * start,
    }


_ONLY_MEASURED = ("rows", "messages", "tree_messages") + tuple(
    prefix + name for name in _STARTED for prefix in ("", _TREES, _DECODER)
)
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
