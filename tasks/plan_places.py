"""The CPU and the GPUs of this machine as the planner knows them, by which name in its ledger."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.planner.catalogue import THIS_MACHINE, Device, Machines, device_named
from millrace.models.planner.estimates import Fits
from millrace.models.planner.measurements import Measurement, fits_of
from millrace.models.planner.this_machine import this_device


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
    machines = Machines(THIS_MACHINE, this_device(installation.home, price_per_hour))
    return Place(machines, fits_of(measurements, cpu_name()), cpu_name())


def gpu_place(measurements: Sequence[Measurement], count: int) -> Place | None:
    """Return GPUs of this machine; None if it has none, or one that the catalogue does not have.

    Args:
        measurements: the ledger.
        count: how many GPUs are used.
    """
    name = this_machine().gpu
    device = device_named(name) if name else None
    if device is None:
        return None
    fits = fits_of(measurements, name, on_gpu=True)
    return Place(Machines(device.chip, device, count), fits, name)


def fits_of_device(device: Device, measurements: Sequence[Measurement]) -> Fits:
    """Return the fits of a device of the catalogue, with this machine's where it is its own."""
    if device.is_cpu:
        return fits_of(measurements, cpu_name())
    name = this_machine().gpu
    is_own = bool(name) and device_named(name) == device
    return fits_of(measurements, name if is_own else "", on_gpu=True)
