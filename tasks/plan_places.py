"""The CPU and the GPUs of this machine as the planner knows them, by which name in its ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.common.machine_cache import machine_cache
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.planner.catalogue import THIS_MACHINE, Machines, device_named
from millrace.models.planner.estimates import Fits
from millrace.models.planner.measurements import Measurement, fits_of
from millrace.models.planner.this_machine import this_device


def pipeline_on(pipeline: Pipeline, machines: Machines) -> Pipeline:
    """Return the pipeline with what it leaves to the machines: workers, actors and precision.

    GPUs have a worker, an actor and the file's instances each, and train in bfloat16 if they have a
    rate for it. A CPU has an actor for each core.
    """
    device, training, batch = machines.device, pipeline.training, pipeline.batch
    if training.num_workers is None and not device.is_cpu:
        training = training.model_copy(update={"num_workers": machines.count})
    serving = pipeline.serving
    if not device.is_cpu:
        instances = serving.instance_count * machines.count
        serving = serving.model_copy(update={"instance_count": instances})
    if training.precision == "auto":
        has_half = not device.is_cpu and "bf16" in device.rates
        training = training.model_copy(update={"precision": "bf16" if has_half else "fp32"})
    if batch.num_actors is None:
        batch = batch.model_copy(update={"num_actors": device.cores or machines.count})
    return pipeline.model_copy(update={"training": training, "batch": batch, "serving": serving})


@dataclass(frozen=True)
class Place:
    """Where a part of a run happens: on this machine's CPU, or on its GPUs.

    Attributes:
        machines: the machines.
        fits: what was fitted on published and earlier measurements of them.
        name: their name in the ledger.
    """

    machines: Machines
    fits: Fits
    name: str


def of_kind(measurements: Sequence[Measurement], kind: ModelKind) -> list[Measurement]:
    """Return the measurements of one kind of model, of which others say little."""
    return [each for each in measurements if each.kind == kind.name]


def cpu_name() -> str:
    """Return the name of this machine's CPU in the ledger, whatever GPU is beside it."""
    return str(replace(this_machine(), gpu=""))


def cpu_place(
    installation: Installation,
    measurements: Sequence[Measurement],
    price_per_hour: float | None = None,
) -> Place:
    """Return this machine's CPU; it is measured if the home does not know it yet.

    Args:
        installation: its home keeps the machine's figures.
        measurements: the ledger.
        price_per_hour: what the machine costs for an hour; None: not known.
    """
    machines = Machines(THIS_MACHINE, this_device(machine_cache(), price_per_hour))
    return Place(machines, fits_of(measurements, cpu_name()), cpu_name())


def own_gpus(count: int) -> Machines | None:
    """Return GPUs of this machine; None if it has none, or one that the catalogue does not have."""
    name = this_machine().gpu
    device = device_named(name) if name and count else None
    return None if device is None else Machines(device.chip, device, count)


def gpu_place(measurements: Sequence[Measurement], count: int) -> Place | None:
    """Return GPUs of this machine, with what was measured on them; None as in `own_gpus`.

    Args:
        measurements: the ledger.
        count: how many GPUs are used.
    """
    machines, name = own_gpus(count), this_machine().gpu
    if machines is None:
        return None
    return Place(machines, fits_of(measurements, name, on_gpu=True), name)


def fits_of_device(machines: Machines, measurements: Sequence[Measurement]) -> Fits:
    """Return the fits of a device of the catalogue, with this machine's where it is its own."""
    if machines.device.is_cpu:
        return fits_of(measurements, cpu_name() if machines.name == THIS_MACHINE else "")
    name = this_machine().gpu
    own = device_named(name) if name else None
    is_own = own is not None and own.chip == machines.device.chip
    return fits_of(measurements, name if is_own else "", on_gpu=True)
