"""The terms of each quantity: what a work asks for, at the figures of the machines."""

import math

from millrace.models.planner.catalogue import Device, Machines
from millrace.models.planner.estimates import DECODER, QUANTITIES, TREES
from millrace.models.planner.parallelism import all_reduce_bytes
from millrace.models.planner.work import Engine, ServingWork, TrainingWork, Variant

ROW_TURNS, CALL_TURNS, JOB_TURNS = 40, 40_000, 40_000_000
"""Turns of a Python loop that the fixed costs of a row, of a step or call, and of a job are counted
in: about 1 µs, 1 ms and 1 s of Python."""
RUNTIME_BYTES, SERVING_BYTES = 400e6, 100e6
"""Memory of a process before it has a model, about: a worker's Python, torch and Ray; that of ONNX
Runtime. On a CPU the weight of the term corrects it."""
CELL_BYTES = 4
"""Bytes of a value in the rows that trees are trained on."""
TURN_ELEMENTS = 16
"""Elements of softmax, of a normalization or of GELU, or nodes of trees, that a core of a CPU does
in a turn, about."""
INTEGERS = ("int8", "int4")
_STATES = ("weights", "gradients", "gradient buckets", "optimizer", "trees")
_ACTIVATIONS = ("activations", "logits")


def training_step_terms(training: TrainingWork, machines: Machines) -> dict[str, float]:
    """Return the terms of a step, in seconds.

    Workers of one CPU share its cores and its bandwidth. Of trees a step is a round, and has its
    share of what the binning of the rows takes before the first one.
    """
    device = machines.device
    sharing = _sharing(training, device)
    moved = training.bytes_per_step * sharing / device.memory_bandwidth
    sent = all_reduce_bytes(training.gradient_bytes, training.workers)
    link = sent * sharing / _link_between(training.workers, device)
    waits = _crowd(training.workers, device)
    python = waits * device.python_seconds
    fixed, kernels = CALL_TURNS * python, waits * training.kernels * device.kernel_seconds
    terms = dict.fromkeys(QUANTITIES["training_step"].terms, 0.0)
    if training.engine == "xgboost":
        cells = training.memory.get("rows", 0.0) / CELL_BYTES
        binned = cells * sharing * device.python_seconds
        own = {"tree_cells": moved, "tree_binning": binned / (training.steps or 1)}
        together = fixed if training.workers > 1 else 0.0
        return {**terms, **own, "tree_rounds": fixed, "tree_messages": together}
    flops = training.flops_per_unit * training.step_units
    return {
        **terms,
        "operations": flops * sharing / device.rate(training.data_type),
        "memory": moved,
        "kernels": kernels,
        "gradients": link,
        "step": fixed,
        "rows": training.items * ROW_TURNS * python,
        # Workers wait for each other's gradients, layer by layer.
        "messages": kernels if training.workers > 1 else 0.0,
    }


def _crowd(processes: int, device: Device) -> float:
    """Return by how much processes are slower that wait for a core of a CPU."""
    return max(1.0, processes / device.cores) if device.cores else 1.0


def _sharing(training: TrainingWork, device: Device) -> float:
    """Return by how much a worker is slower than the whole device: 1 on a GPU of its own."""
    if device.cores is None:
        return 1.0
    threads = training.threads or max(1, device.cores // training.workers)
    return max(training.workers, device.cores / threads)


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
    prefix = {"onnxruntime": "", "trees": TREES, "openvino": DECODER}[engine]
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
    instances; on GPUs its share of those on its GPU. Weights that fit into the cache stay there
    from call to call.
    """
    device = machines.device
    if device.cores:
        sharing = max(serving.instances, device.cores / (serving.threads or device.cores))
    else:
        sharing = max(1.0, serving.instances / machines.count)
    moved = serving.bytes_per_unit * units * sharing / device.memory_bandwidth
    terms = dict.fromkeys(QUANTITIES["online_call"].terms, 0.0)
    waits = _crowd(serving.instances, device)
    fixed = waits * CALL_TURNS * device.python_seconds
    elements = serving.function_elements * units * sharing
    turns = elements / TURN_ELEMENTS / device.cores if device.cores else 0.0
    if serving.engine == "trees":
        # The nodes of usual trees lie in the cache, so a CPU's bandwidth says nothing of them.
        walk = turns * device.python_seconds if device.cores else moved
        return {**terms, "tree_walk": walk, "call": fixed}
    prefix = DECODER if serving.engine == "openvino" else ""
    between = serving.activation_flops * units
    flops = serving.flops_per_unit * units - between
    is_quantized = variant.data_type in INTEGERS and not prefix
    kept = "fp32" if variant.data_type in INTEGERS else variant.data_type
    kernels = waits * serving.kernels * device.kernel_seconds
    read = variant.weight_bytes * sharing / device.memory_bandwidth
    streamed = _streamed_share(variant.weight_bytes * serving.instances, device)
    return {
        **terms,
        "operations": sharing
        * (flops / device.rate(variant.data_type) + between / device.rate(kept)),
        "functions": turns * device.python_seconds,
        "weights": streamed * read,
        "integer_cached" if is_quantized else "cached": (1 - streamed) * read,
        # Activations are quantized before an operation, and scaled after it.
        "quantization": kernels if is_quantized else 0.0,
        "activations": moved,
        f"{prefix}kernels": kernels,
        f"{prefix}call": fixed,
    }


def _streamed_share(weights: float, device: Device) -> float:
    """Return the share of weights that each call reads from memory: none of what fits the cache.

    All of them from twice the cache on.
    """
    return min(1.0, max(0.0, weights / device.cache - 1)) if device.cache else 1.0


def latency_terms(
    serving: ServingWork, variant: Variant, prompt: int, machines: Machines
) -> dict[str, float]:
    """Return the terms of a latency, in seconds: of one row, or to the second token of an answer.

    A prompt is read in one call, and the second token takes another.

    Args:
        serving: the service.
        variant: the variant that answers.
        prompt: tokens of the prompt; 0: one row.
        machines: the machines.
    """
    one = call_terms(serving, variant, 1, machines)
    if not prompt:
        return one
    return {
        name: seconds * (prompt + 1 if name == "operations" else 2) for name, seconds in one.items()
    }


def unit_terms(
    serving: ServingWork, variant: Variant, machines: Machines, read: float = 0.0
) -> dict[str, float]:
    """Return the terms of the time of a unit at full load, in seconds.

    Args:
        serving: the service.
        variant: the variant that answers.
        machines: the machines.
        read: tokens of prompts that are read for each token of an answer.
    """
    units = serving.call_units
    done = units * serving.instances
    terms = call_terms(serving, variant, units, machines)
    return {
        name: seconds * (1 + read if name == "operations" else 1) / done
        for name, seconds in terms.items()
    }


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
    python, actors = machines.device.python_seconds, serving.instances
    one = call_terms(serving, variant, 1, machines)
    prefix = DECODER if serving.engine == "openvino" else ""
    return {
        **dict.fromkeys(QUANTITIES["batch_job"].terms, 0.0),
        "operations": one["operations"] * units / actors,
        "functions": one["functions"] * units / actors,
        "memory": one["activations"] * units / actors,
        "weights": one["weights"] * calls / actors,
        "cached": one["cached"] * calls / actors,
        "integer_cached": one["integer_cached"] * calls / actors,
        "quantization": one["quantization"] * calls / actors,
        "tree_walk": one["tree_walk"] * units / actors,
        "rows": 0.0 if prefix else units * ROW_TURNS * python,
        f"{prefix}kernels": one[f"{prefix}kernels"] * calls / actors,
        f"{prefix}calls": one[f"{prefix}call"] * calls / actors,
        f"{prefix}job": JOB_TURNS * python,
    }
