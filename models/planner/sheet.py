"""The sheet of a plan: the three stages of a model beside each other, on one kind of machine.

Every number carries its formula. Times are sums of physical terms at the machine's figures; where
measurements were fitted, they carry the fit's interval, and elsewhere none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.cost import MILLION, SECONDS_OF_AN_HOUR
from millrace.models.planner.decode_plan import Stage, generation_quantities
from millrace.models.planner.estimates import (
    RUNTIME_BYTES,
    Fits,
    call_terms,
    estimate_quantity,
    job_terms,
    rate_of,
    serving_memory_terms,
    training_memory_terms,
    training_parts,
    training_step_terms,
    unit_terms,
)
from millrace.models.planner.quantity import (
    Cell,
    Quantity,
    cost_quantities,
    format_value,
)
from millrace.models.planner.serving_memory import bytes_of_type
from millrace.models.planner.training_flops import SECONDS_OF_A_DAY
from millrace.models.planner.work import ServingWork, TrainingWork, Variant, Work

ROWS = ("memory", "compute", "speed", "IO", "concurrency", "data types", "cost")
STAGES = ("training", "online", "batch")
_ON_GPU = {"states": "weights and optimizer", "activations": "activations or gradients"}


@dataclass(frozen=True)
class MemoryFault:
    """A stage that does not fit into memory.

    Attributes:
        what: the stage.
        needed: bytes that it needs.
        available: bytes that there are.
        formula: what they are for.
    """

    what: str
    needed: float
    available: float
    formula: str

    def __str__(self) -> str:
        """Return a sentence."""
        needed, available = (format_value(n, "bytes") for n in (self.needed, self.available))
        return f"{self.what} needs {needed} and there are {available}: {self.formula}"


@dataclass(frozen=True)
class Sheet:
    """The plan of one model on one kind of machine.

    Attributes:
        work: what the model asks for.
        machines: the machines.
        cells: the quantities by stage and row.
        faults: the stages that do not fit into memory.
        devices: the most devices that a stage needs.
    """

    work: Work
    machines: Machines
    cells: Mapping[str, Mapping[str, Cell]]
    faults: tuple[MemoryFault, ...]
    devices: int = 1

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.work.model

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "model": self.model,
            "machines": self.machines,
            "cells": self.cells,
            "faults": self.faults,
        }

    @property
    def fits(self) -> bool:
        """Whether every stage fits into the machine's memory."""
        return not self.faults


def plan_sheet(
    work: Work,
    machines: Machines,
    fits: Fits | None = None,
    load_per_second: float | None = None,
) -> Sheet:
    """Return the sheet of a model.

    Args:
        work: what the pipeline asks for.
        machines: the machines that each stage runs on.
        fits: what was fitted on measurements of the machine, by quantity.
        load_per_second: rows or tokens that are asked for online; None: as many as it can answer.
    """
    variant, known = work.online.variants[0], fits or {}
    cells = {
        "training": _training(work, work.training, machines, known),
        "online": _serving(work, work.online, variant, machines, known, load_per_second),
        "batch": _batch(work, variant, machines, known),
    }
    faults = tuple(_memory_faults(work, machines, cells))
    if (fault := _cache_fault(work)) is not None:
        faults = (*faults, fault)
    return Sheet(work, machines, cells, faults, _devices_of(work, machines))


def _training(
    work: Work, training: TrainingWork, machines: Machines, fits: Fits
) -> Mapping[str, Cell]:
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
        formula = f"{training.steps:,} steps x {step}"
        total = Quantity("in all", step.value * training.steps, "seconds", formula, step.source)
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
        "data types": (_data_type(training.data_type),),
        "cost": cost,
    }


def _of_unknown_rows(training: TrainingWork, memory: Quantity) -> Mapping[str, Cell]:
    """Return the training where a step is over all rows, and nobody has counted them yet."""
    return {
        **dict.fromkeys(ROWS, ()),
        "memory": (memory,),
        "concurrency": (_workers(training),),
        "data types": (_data_type(training.data_type),),
    }


def _workers(training: TrainingWork) -> Quantity:
    return Quantity(
        "worker" if training.workers == 1 else "workers",
        training.workers,
        "count",
        f"training.num_workers, {training.strategy}",
    )


def _memory_faults(
    work: Work, machines: Machines, cells: Mapping[str, Mapping[str, Cell]]
) -> Iterator[MemoryFault]:
    """Yield the stages that do not fit. Workers of a CPU share its memory."""
    available = machines.device.memory
    for stage in STAGES:
        memory, sharing = cells[stage]["memory"][0], 1
        if machines.device.is_cpu and stage == "training":
            sharing = work.training.workers
        if memory.value * sharing > available:
            formula = memory.formula if sharing == 1 else f"{sharing} workers x ({memory.formula})"
            yield MemoryFault(stage, memory.value * sharing, available, formula)


def _cache_fault(work: Work) -> MemoryFault | None:
    """Return the fault of a KV cache that is too small for one sequence."""
    generation = work.online.generation
    if generation is None:
        return None
    decoder, split = generation.decoder, generation.tensor_parallel
    per_token = decoder.kv_bytes_per_token(bytes_of_type(generation.kv_data_type))
    one = per_token * split / decoder.cache_split(split) * generation.context
    if one <= generation.cache_bytes:
        return None
    formula = (
        f"{format_value(per_token, 'bytes')} of each token; set serving.generation.cache_size_gib"
    )
    what = f"the KV cache of one sequence of {generation.context:,} tokens"
    return MemoryFault(what, one, generation.cache_bytes, formula)


def _devices_of(work: Work, machines: Machines) -> int:
    """Return the most devices that a stage needs; a CPU is one device."""
    if machines.device.is_cpu:
        return 1
    generation = work.online.generation
    serving = 1 if generation is None else generation.tensor_parallel
    return max(serving, 1 if work.training.engine == "xgboost" else work.training.workers)


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


def _dollars(seconds: float, machines: Machines) -> Quantity:
    price = machines.dollars_per_hour or 0.0
    return Quantity(
        "in all",
        seconds / SECONDS_OF_AN_HOUR * price,
        "dollars",
        f"{format_value(seconds, 'seconds')} x ${price:g} an hour",
    )


def _serving(
    work: Work,
    serving: ServingWork,
    variant: Variant,
    machines: Machines,
    fits: Fits,
    load_per_second: float | None,
) -> Mapping[str, Cell]:
    if serving.generation is not None:
        stage = Stage(work, serving, variant, machines, fits)
        return generation_quantities(stage, serving.generation, load_per_second)
    unit = work.unit
    memory = estimate_quantity(
        "online_memory",
        "of the process",
        serving_memory_terms(serving, variant, machines.count),
        fits,
    )
    one = estimate_quantity(
        "online_call", f"one {unit[:-1]}", call_terms(serving, variant, 1, machines), fits
    )
    each = estimate_quantity(
        "online_unit", f"a {unit[:-1]}", unit_terms(serving, variant, machines), fits
    )
    capacity = rate_of(each, unit)
    rate = capacity.value
    flops = Quantity(
        f"a {unit[:-1]}", serving.flops_per_unit, "operations", "forward, of the matrix products"
    )
    return {
        "memory": (memory,),
        "compute": (flops,),
        "speed": (one, capacity),
        "IO": (_moved(serving, capacity),),
        "concurrency": (
            Quantity(
                "rows at a time",
                serving.instances * serving.call_units,
                "count",
                f"{serving.instances} instances x {serving.call_units} of a batch",
            ),
        ),
        "data types": (_data_type(variant.data_type, variant.name),),
        "cost": cost_quantities(
            rate, load_per_second, machines.dollars_per_hour, machines.watts, unit
        ),
    }


def _moved(serving: ServingWork, rate: Quantity) -> Quantity:
    """Return the bytes of inputs and answers at a rate."""
    size = serving.input_bytes + serving.output_bytes
    formula = f"{size:,.0f} B x {rate}"
    words = "of requests and answers"
    return Quantity(words, size * rate.value, "bytes per second", formula)


def _batch(work: Work, variant: Variant, machines: Machines, fits: Fits) -> Mapping[str, Cell]:
    """Return the nightly job: by its whole time where its rows are known, else by their rate."""
    job = work.batch
    cells = dict(_serving(work, job, variant, machines, fits, None))
    if job.generation is not None:
        rate = next(each for each in cells["speed"] if each.unit == "per second")
        return {**cells, "speed": (rate, _daily(rate, work.unit))}
    units = work.batch_units
    many = units or MILLION
    terms = job_terms(job, variant, many, many / job.call_units, machines)
    if units is None:
        terms["job"] = 0.0
    night = estimate_quantity("batch_job", "the nightly job", terms, fits)
    rate = rate_of(night, work.unit, many)
    speed = (rate, _daily(rate, work.unit), *([night] if units is not None else []))
    price, watts = machines.dollars_per_hour, machines.watts
    cost = cost_quantities(rate.value, None, price, watts, work.unit)
    return {**cells, "speed": speed, "IO": (_moved(job, rate),), "cost": cost}


def _daily(rate: Quantity, unit: str) -> Quantity:
    return Quantity(
        "",
        rate.value * SECONDS_OF_A_DAY,
        "per day",
        f"{rate} x 86,400 s",
        rate.source,
        rate.low and rate.low * SECONDS_OF_A_DAY,
        rate.high and rate.high * SECONDS_OF_A_DAY,
        of=unit,
    )


def _data_type(data_type: str, name: str = "") -> Quantity:
    return Quantity(
        f"a number, {name or data_type}", bytes_of_type(data_type), "bytes", f"in {data_type}"
    )
