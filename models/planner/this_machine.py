"""This machine as a device of the catalogue: measured once, in a few seconds, and kept.

Stated figures of a CPU say little about what a program reaches, so bandwidth and rates are measured
with the library that computes, torch, and with all cores that this process may use.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from millrace.models.common.hardware import memory_bytes, this_machine
from millrace.models.common.other_programs import QUIET, Others
from millrace.models.common.private_files import replace_private
from millrace.models.planner.catalogue import Device, Price

log = logging.getLogger("millrace")
FILE = "machine.json"
ROUNDS = 5
"""Repetitions of each measurement in a cycle, of which the fastest counts."""
QUIET_CYCLES, MOST_CYCLES = 2, 4
"""Cycles without other programs that are wanted, and cycles at most: a run measures just after it
has started Ray, whose processes need a second."""
PAUSE_SECONDS = 0.1
COPIED_BYTES = 256 * 2**20
"""Size of the copied array, many times that of a cache."""
MATRIX = 1024
"""Rows and columns of the multiplied matrices."""
KERNELS = 2000
TURNS = 200_000
"""Turns of the loop by which Python is measured: about 10 ms."""
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COMMON_CACHE = 32 * 2**20
"""Bytes of the largest cache, where the system does not say it."""
DISTURBED_SECONDS = 3600.0
"""How long measurements count that were made while other programs ran."""
BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_device(folder: Path, price_per_hour: float | None = None) -> Device:
    """Return this machine; it is measured if the folder does not know it yet.

    Args:
        folder: where the measurements are kept: `machine_cache()`.
        price_per_hour: what the machine costs for an hour; None: not known.
    """
    kept = read_kept(folder)
    if kept is None:
        kept = measure_device()
        _keep(kept, folder / FILE)
    if not price_per_hour:
        return kept
    price = Price(
        dollars_per_hour=price_per_hour,
        date=datetime.now(UTC).date(),
        source="batch.price_per_hour",
    )
    return kept.model_copy(update={"price": price})


def read_kept(folder: Path) -> Device | None:
    """Return the measurements in a folder; None if there are none, or of another machine.

    Those that were made while other programs ran count for an hour.
    """
    with suppress(OSError, ValueError, KeyError, TypeError, ValidationError, RecursionError):
        known = json.loads((folder / FILE).read_text())
        age = abs(time.time() - (folder / FILE).stat().st_mtime)
        is_good = known["device"]["disturbed"] is False or age < DISTURBED_SECONDS
        if known["machine"] == _identity() and is_good:
            return Device.model_validate(known["device"])
    return None


def _keep(device: Device, path: Path) -> None:
    """Write the measurements; where that fails, each plan measures again, and a warning says so."""
    known = {"machine": _identity(), "device": device.model_dump(mode="json")}
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_private(path, json.dumps(known, indent=2))
    except OSError as error:
        log.warning("each plan measures this machine again: %s", error)


def _identity() -> dict[str, Any]:
    """Return what makes measurements invalid when it changes: a virtual machine may be moved."""
    machine = this_machine()
    return {
        "boot": BOOT.read_text().strip() if BOOT.exists() else None,
        "processor": machine.processor,
        "kind": machine.kind,
        "cores": machine.cores,
        "memory": memory_bytes(),
    }


def measure_device() -> Device:
    """Measure bandwidth, rates, the start of an operation, and Python.

    Each figure is the best of several cycles, because other programs only slow it down. The device
    is `disturbed` if too few cycles had the machine for themselves.
    """
    import torch

    log.info("measuring this machine; its figures are kept")
    machine = this_machine()
    torch.set_num_threads(machine.cores)
    rates: dict[str, float] = {}
    seconds: dict[str, float] = {}
    quiet = 0
    for _ in range(MOST_CYCLES):
        with Others(machine.cores) as others:
            for name, measure in RATES.items():
                rates[name] = max(rates.get(name, 0.0), measure())
            for name, measure in SECONDS.items():
                seconds[name] = min(seconds.get(name, math.inf), measure())
        quiet += others.share <= QUIET
        if quiet == QUIET_CYCLES:
            break
        time.sleep(PAUSE_SECONDS)
    return Device(
        label=f"{machine.processor}, {machine.cores} cores",
        memory=memory_bytes(),
        memory_bandwidth=rates.pop(COPY),
        rates=rates,
        cores=machine.cores,
        **seconds,
        cache=_cache_bytes(),
        disturbed=quiet < QUIET_CYCLES,
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


def _matrix_rate(name: str) -> float:
    """Return the operations per second of a matrix product in a data type of torch."""
    import torch

    left = torch.ones(MATRIX, MATRIX, dtype=getattr(torch, name))
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


def _python_seconds() -> float:
    """Return the seconds of one turn of a loop that adds: how fast this machine runs Python."""

    def turn() -> None:
        total = 0
        for number in range(TURNS):
            total += number

    return _fastest(turn) / TURNS


def _cache_bytes(folder: Path = CACHES) -> float:
    """Return the bytes of the largest cache, or of a common one where that is not known."""
    sizes = []
    for file in folder.glob("index*/size"):
        with suppress(OSError, ValueError):
            sizes.append(1024.0 * int(file.read_text().strip().removesuffix("K")))
    return max(sizes, default=float(COMMON_CACHE))


COPY = "copy"
RATES: Mapping[str, Callable[[], float]] = {
    COPY: _copy_bandwidth,
    "fp32": lambda: _matrix_rate("float32"),
    "bf16": lambda: _matrix_rate("bfloat16"),
    "int8": _int8_rate,
}
"""What is measured as bytes or operations per second."""
SECONDS: Mapping[str, Callable[[], float]] = {
    "kernel_seconds": _kernel_seconds,
    "python_seconds": _python_seconds,
}
"""What is measured in seconds, as `Device` names it."""
