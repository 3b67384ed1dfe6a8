"""The column of the training in a sheet."""

from collections.abc import Mapping
from dataclasses import replace

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.cost import SECONDS_OF_AN_HOUR
from millrace.models.planner.estimates import Fits, estimate_quantity
from millrace.models.planner.quantity import ROWS, Cell, Quantity, format_value, width_of
from millrace.models.planner.work import TrainingWork, Work
from millrace.models.planner.work_terms import (
    RUNTIME_BYTES,
    training_memory_terms,
    training_parts,
    training_step_terms,
)

_ON_GPU = {"states": "weights and optimizer", "activations": "activations or gradients"}


def training_cells(
    work: Work, training: TrainingWork, machines: Machines, fits: Fits
) -> Mapping[str, Cell]:
    """Return the cells of the training."""
    unit = work.unit
    if training.engine == "xgboost" and not machines.device.is_cpu:
        fits = {}  # of PyTorch on GPUs; trees are grown on the CPU beside them
    memory = worker_memory(work, training, machines, fits)
    if not training.step_units:
        return _of_unknown_rows(training, memory)
    step = step_seconds(training, machines, fits)
    throughput = training.step_units * training.workers / step.value
    rate = Quantity(
        "",
        throughput,
        "per second",
        f"{training.step_units:,.0f} x {training.workers} workers ÷ {step}",
        step.source,
        of=unit,
    )
    flops = Quantity(
        f"a {unit[:-1]}",
        training.flops_per_unit,
        "operations",
        "forward and backward, of the matrix products",
    )
    speed: Cell = (step, rate)
    cost: Cell = ()
    if training.steps is not None:
        total = _total(step, training.steps)
        speed = (*speed, total)
        if machines.dollars_per_hour is not None:
            cost = (_dollars(total.value, machines),)
    read = training.bytes_per_unit * throughput
    checkpoint = Quantity(
        "a checkpoint", training.checkpoint_bytes, "bytes", "weights and the optimizer's states"
    )
    io = (
        Quantity(
            "are read",
            read,
            "bytes per second",
            f"{format_value(training.bytes_per_unit, 'bytes')} of a {unit[:-1]} x {rate}",
        ),
        checkpoint,
    )
    return {
        "memory": (memory,),
        "compute": (flops,),
        "speed": speed,
        "IO": io,
        "concurrency": (_workers(training),),
        "data types": (width_of(training.data_type),),
        "cost": cost,
    }


def _of_unknown_rows(training: TrainingWork, memory: Quantity) -> Mapping[str, Cell]:
    """Return the training where a step is over all rows, and nobody has counted them yet."""
    return {
        **dict.fromkeys(ROWS, ()),
        "memory": (memory,),
        "concurrency": (_workers(training),),
        "data types": (width_of(training.data_type),),
    }


def _workers(training: TrainingWork) -> Quantity:
    return Quantity(
        "worker" if training.workers == 1 else "workers",
        training.workers,
        "count",
        f"training.num_workers, {training.strategy}",
    )


def worker_memory(work: Work, training: TrainingWork, machines: Machines, fits: Fits) -> Quantity:
    """Return the peak memory of a worker."""
    on_gpu = not machines.device.is_cpu
    terms = training_memory_terms(training, work.online.engine, on_gpu=on_gpu)
    parts = None
    if "training_memory" not in fits:
        parts = {"runtime": RUNTIME_BYTES, **training_parts(training, on_gpu=on_gpu)}
    elif on_gpu:
        weights = fits["training_memory"].weights
        parts = {_ON_GPU.get(name, name): weights[name] * terms[name] for name in weights}
    return estimate_quantity("training_memory", "on each worker", terms, fits, parts)


def step_seconds(training: TrainingWork, machines: Machines, fits: Fits) -> Quantity:
    """Return the time of a training step."""
    terms = training_step_terms(training, machines)
    return estimate_quantity("training_step", "a step", terms, fits)


def _total(step: Quantity, steps: int) -> Quantity:
    """Return the time of all steps; the start of the workers is not in it."""
    return replace(
        step,
        name="of steps in all",
        value=step.value * steps,
        formula=f"{steps:,} steps x {step}",
        low=step.low and step.low * steps,
        high=step.high and step.high * steps,
    )


def _dollars(seconds: float, machines: Machines) -> Quantity:
    price = machines.dollars_per_hour or 0.0
    return Quantity(
        "of steps in all",
        seconds / SECONDS_OF_AN_HOUR * price,
        "dollars",
        f"{format_value(seconds, 'seconds')} x ${price:g} an hour",
    )
