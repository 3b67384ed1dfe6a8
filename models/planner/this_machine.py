"""This machine as a device of the catalogue: measured once, in about three seconds, and kept.

Stated figures of a CPU say little about what a program reaches, so bandwidth and rates are measured
with the library that computes, torch, and with all cores that this process may use.
"""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace.models.common.hardware import memory_bytes, this_machine
from millrace.models.common.private_files import replace_private
from millrace.models.planner.catalogue import Device, Price

log = logging.getLogger("millrace")
FILE = "machine.json"
ROUNDS = 5
"""Repetitions of each measurement, of which the fastest counts: others only take time away."""
COPIED_BYTES = 256 * 2**20
"""Size of the copied array, many times that of a cache."""
MATRIX = 1024
"""Rows and columns of the multiplied matrices."""
KERNELS = 2000
DISK_BYTES = 64 * 2**20


def this_device(home: Path, price_per_hour: float | None = None) -> Device:
    """Return this machine; it is measured if the home does not know it yet.

    Args:
        home: the home folder, where the measurements are kept if it exists.
        price_per_hour: what the machine costs for an hour; None: not known.
    """
    kept = read_kept(home)
    if kept is None:
        kept = measure_device(home if home.is_dir() else Path(tempfile.gettempdir()))
        if home.is_dir():
            _keep(kept, home / FILE)
    if not price_per_hour:
        return kept
    price = Price(
        dollars_per_hour=price_per_hour,
        date=datetime.now(UTC).date(),
        source="batch.price_per_hour",
    )
    return kept.model_copy(update={"price": price})


def read_kept(home: Path) -> Device | None:
    """Return the measurements in a home; None if there are none, or of another machine."""
    with suppress(OSError, ValueError, KeyError, TypeError, ValidationError):
        known = json.loads((home / FILE).read_text())
        if known["machine"] == _identity():
            return Device.model_validate(known["device"])
    return None


def _keep(device: Device, path: Path) -> None:
    """Write the measurements; where that fails, each plan measures again, and a warning says so."""
    known = {"machine": _identity(), "device": device.model_dump(mode="json")}
    try:
        replace_private(path, json.dumps(known, indent=2))
    except OSError as error:
        log.warning("each plan measures this machine again: %s", error)


def _identity() -> dict[str, Any]:
    """Return what makes measurements invalid when it changes."""
    machine = this_machine()
    return {
        "processor": machine.processor,
        "kind": machine.kind,
        "cores": machine.cores,
        "memory": memory_bytes(),
    }


def measure_device(folder: Path) -> Device:
    """Measure bandwidth, rates, the start of an operation, and the disk of a folder."""
    import torch

    torch.set_num_threads(this_machine().cores)
    machine = this_machine()
    return Device(
        label=f"{machine.processor}, {machine.cores} cores",
        memory=memory_bytes(),
        memory_bandwidth=_copy_bandwidth(),
        rates={
            "fp32": _matrix_rate(torch.float32),
            "bf16": _matrix_rate(torch.bfloat16),
            "int8": _int8_rate(),
        },
        cores=machine.cores,
        kernel_seconds=_kernel_seconds(),
        disk_bandwidth=_disk_bandwidth(folder),
        source=f"measured here, {datetime.now(UTC).date()}",
    )


def _fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some repetitions, after one that does not count."""
    work()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _copy_bandwidth() -> float:
    """Return the bytes per second of a copy, which reads and writes each byte."""
    import torch

    source = torch.ones(COPIED_BYTES // 4)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _fastest(lambda: target.copy_(source))


def _matrix_rate(dtype: Any) -> float:
    """Return the operations per second of a matrix product."""
    import torch

    left = torch.ones(MATRIX, MATRIX, dtype=dtype)
    return 2 * MATRIX**3 / _fastest(lambda: left @ left)


def _int8_rate() -> float:
    """Return the operations per second of a product of int8 matrices, summed in int32."""
    import torch

    left = torch.ones(MATRIX, MATRIX, dtype=torch.int8)
    return 2 * MATRIX**3 / _fastest(lambda: torch._int_mm(left, left))


def _kernel_seconds() -> float:
    """Return the seconds that torch takes for an operation on one number."""
    import torch

    number = torch.ones(1)

    def start() -> None:
        for _ in range(KERNELS):
            torch.add(number, number)

    return _fastest(start) / KERNELS


def _disk_bandwidth(folder: Path) -> float:
    """Return the bytes per second that are written and synchronized."""
    block = os.urandom(2**20)

    def write() -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(DISK_BYTES // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())

    return DISK_BYTES / _fastest(write)
