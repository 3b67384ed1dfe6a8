"""What the figures were measured on."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from millrace.models.common import hardware

PACKAGES = (
    "millrace",
    "torch",
    "ray",
    "mlflow",
    "prefect",
    "onnxruntime",
    "nvidia-pytriton",
    "tritonclient",
    "deltalake",
    "numpy",
)


@dataclass(frozen=True)
class Machine:
    """The machine and what is installed on it.

    Attributes:
        system: operating system and architecture.
        processor: the processor's name.
        flags: its instruction sets that choose kernels.
        cores: cores that this process may use.
        memory_gib: memory, GiB.
        python: version of Python.
        packages: versions by package; what is not installed is left out.
    """

    system: str
    processor: str
    flags: tuple[str, ...]
    cores: int
    memory_gib: float
    python: str
    packages: dict[str, str]


def this_machine() -> Machine:
    """Describe the machine that this runs on."""
    found = hardware.this_machine()
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=found.processor,
        flags=found.flags,
        cores=found.cores,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        python=platform.python_version(),
        packages=_versions(),
    )


def load_average() -> float:
    """Return the load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
