"""Packs the services and the nightly jobs of several models onto the fewest devices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from millrace.models.common.errors import InputError
from millrace.models.planner.quantity import format_value

MOST_REPLICAS = 1000
"""Most replicas of a job that are packed."""


@dataclass(frozen=True)
class Demand:
    """What one job needs of a device.

    Attributes:
        name: the job, for example `digits online`.
        memory: bytes.
        load: share of the device's time, 0 to 1.
    """

    name: str
    memory: float
    load: float = 0.0


@dataclass
class PackedDevice:
    """A device with the jobs on it.

    Attributes:
        memory: bytes of the device.
        demands: the jobs.
    """

    memory: float
    demands: list[Demand] = field(default_factory=list)

    @property
    def used_memory(self) -> float:
        """Bytes that its jobs need."""
        return sum(each.memory for each in self.demands)

    @property
    def used_load(self) -> float:
        """Share of its time that its jobs need."""
        return sum(each.load for each in self.demands)

    def has_room(self, demand: Demand) -> bool:
        """Whether a job fits beside the others."""
        fits = self.used_memory + demand.memory <= self.memory
        return fits and self.used_load + demand.load <= 1 + 1e-9

    def room_left(self, demand: Demand) -> float:
        """Return the larger share that is left of memory and time once a job is added."""
        memory = 1 - (self.used_memory + demand.memory) / self.memory
        return max(memory, 1 - self.used_load - demand.load)


def replicas_of(demand: Demand) -> list[Demand]:
    """Return the replicas that share a job's load, each with all of its memory; at least one.

    Raises:
        InputError: there would be more than `MOST_REPLICAS`.
    """
    if demand.load > MOST_REPLICAS:
        raise InputError(
            f"{demand.name} needs {demand.load:,.3g} devices",
            seen=f"{demand.load:,.3g} times what a device can do",
            valid=f"at most {MOST_REPLICAS} devices for a job",
            hint="lower --load, or plan this pipeline by itself",
        )
    count = max(1, math.ceil(demand.load - 1e-9))
    if count == 1:
        return [demand]
    return [
        replace(demand, name=f"{demand.name} {n} of {count}", load=demand.load / count)
        for n in range(1, count + 1)
    ]


def pack_devices(
    online: Sequence[Demand], nightly: Sequence[Demand], memory: float
) -> list[PackedDevice]:
    """Return devices that hold all jobs: the services first, the nightly jobs in what is left.

    Each job goes to the device where it leaves the least room, the largest job first (best fit
    decreasing, Johnson 1973, which needs at most 11/9 of the fewest devices in one dimension).

    Args:
        online: the services.
        nightly: the nightly jobs.
        memory: bytes of a device.

    Raises:
        InputError: a job fits no device by itself.
    """
    devices: list[PackedDevice] = []
    for jobs in (online, nightly):
        for demand in sorted(jobs, key=lambda each: -max(each.memory / memory, each.load)):
            _require_room(demand, memory)
            _place(demand, devices, memory)
    return devices


def _place(demand: Demand, devices: list[PackedDevice], memory: float) -> None:
    fitting = [each for each in devices if each.has_room(demand)]
    if not fitting:
        fitting = [PackedDevice(memory)]
        devices.extend(fitting)
    min(fitting, key=lambda each: each.room_left(demand)).demands.append(demand)


def _require_room(demand: Demand, memory: float) -> None:
    if demand.memory > memory or demand.load > 1:
        raise InputError(
            f"{demand.name} does not fit one device of {format_value(memory, 'bytes')}",
            seen=f"{format_value(demand.memory, 'bytes')} and {demand.load:.0%} of its time",
            valid=f"at most {format_value(memory, 'bytes')} and 100%",
            hint="choose a larger device in --hardware, or plan this pipeline by itself",
        )
