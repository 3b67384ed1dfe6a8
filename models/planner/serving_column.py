"""The columns of the service and of the nightly job in a sheet."""

from collections.abc import Mapping
from dataclasses import replace

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.cost import MILLION
from millrace.models.planner.decode_plan import Stage, generation_quantities
from millrace.models.planner.estimates import Fits, estimate_quantity, rate_of
from millrace.models.planner.quantity import Cell, Quantity, cost_quantities, format_value, width_of
from millrace.models.planner.training_flops import SECONDS_OF_A_DAY
from millrace.models.planner.work import ServingWork, Variant, Work
from millrace.models.planner.work_terms import (
    call_terms,
    job_terms,
    serving_memory_terms,
    unit_terms,
)

ACTOR_BYTES = 150e6
"""Memory of an actor's Python, Ray and pyarrow beside the model, about: four actors of a small
table had 262 to 272 MB each."""


def serving_cells(
    work: Work,
    serving: ServingWork,
    variant: Variant,
    machines: Machines,
    fits: Fits,
    load_per_second: float | None,
) -> Mapping[str, Cell]:
    """Return the cells of a service; `load_per_second` as in `plan_sheet`."""
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
        "data types": (width_of(variant.data_type, variant.name),),
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


def batch_cells(work: Work, variant: Variant, machines: Machines, fits: Fits) -> Mapping[str, Cell]:
    """Return the nightly job: by its whole time where its rows are known, else by their rate."""
    job = work.batch
    cells = dict(serving_cells(work, job, variant, machines, fits, None))
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
    if machines.device.is_cpu:
        cells["memory"] = (_actors_memory(job, variant, fits),)
    return {**cells, "speed": speed, "IO": (_moved(job, rate),), "cost": cost}


def _actors_memory(job: ServingWork, variant: Variant, fits: Fits) -> Quantity:
    """Return the memory of all actors of a CPU: each is a process of Ray with the model."""
    terms = serving_memory_terms(replace(job, instances=1), variant)
    one, count = estimate_quantity("online_memory", "", terms, fits), job.instances
    ends = [count * (each + ACTOR_BYTES) for each in one.ends]
    return replace(
        one,
        name=f"of {count} actors",
        value=count * (one.value + ACTOR_BYTES),
        formula=f"{count} actors x ({format_value(ACTOR_BYTES, 'bytes')} of Ray + {one.formula})",
        low=None if one.low is None else ends[0],
        high=None if one.high is None else max(ends[1], one.high),
    )


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
        notes=rate.notes,
    )
