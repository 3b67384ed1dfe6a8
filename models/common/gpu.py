"""The NVIDIA GPU of this machine, and what a TensorRT engine that is built here is tied to."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
QUERY_SECONDS = 20.0
"""A driver that is loaded by the first call takes some."""
TENSORRT = {"tensorrt-cu13": "13", "tensorrt-cu12": "12", "tensorrt": ""}
"""The packages that bring TensorRT, and the CUDA that each is built for; empty for unknown."""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU.

    Attributes:
        name: as the driver calls it.
        compute_capability: such as `9.0`.
        driver: version of the driver.
    """

    name: str
    compute_capability: str
    driver: str


@dataclass(frozen=True)
class Ties:
    """What a TensorRT engine runs with, and with nothing else; what it measures holds there too.

    Attributes:
        gpu: the GPU, and its driver.
        tensorrt: version of TensorRT.
        cuda: major version of CUDA that TensorRT is built for; empty for unknown.
    """

    gpu: Gpu
    tensorrt: str
    cuda: str = ""

    def __str__(self) -> str:
        """Return them for people, and to compare one place with another."""
        gpu = self.gpu
        words = (
            f"{gpu.name} (compute capability {gpu.compute_capability})",
            f"driver {gpu.driver}",
            f"TensorRT {self.tensorrt}",
            f"CUDA {self.cuda}" if self.cuda else "",
        )
        return ", ".join(word for word in words if word)

    @property
    def slug(self) -> str:
        """They as a part of a file's name: letters, digits, '.' and '-'."""
        gpu = self.gpu
        words = [gpu.name, f"sm{gpu.compute_capability.replace('.', '')}", f"driver-{gpu.driver}"]
        words += [f"tensorrt-{self.tensorrt}", *([f"cuda-{self.cuda}"] if self.cuda else [])]
        plain = ("".join(c if c.isalnum() or c in ".-" else "-" for c in word) for word in words)
        return ".".join(plain)


def gpu_of(listed: str) -> Gpu | None:
    """Return the first GPU that nvidia-smi listed, one line each; None for none."""
    fields = [field.strip() for field in listed.strip().partition("\n")[0].split(",")]
    known = len(fields) == 3 and all(fields) and re.fullmatch(r"[0-9]+\.[0-9]+", fields[1])
    return Gpu(*fields) if known else None


@cache
def this_gpu() -> Gpu | None:
    """Return the first NVIDIA GPU of this machine by nvidia-smi; None if there is none.

    A machine whose GPUs are of several kinds is taken for one of the first kind.
    """
    try:
        asked = subprocess.run(
            QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return gpu_of(asked.stdout)


def tensorrt_of(installed: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the version of TensorRT and its CUDA among installed packages, or None."""
    found = ((installed[name], cuda) for name, cuda in TENSORRT.items() if name in installed)
    return next(found, None)


def these_ties() -> Ties | None:
    """Return what an engine that is built here is tied to; None without a GPU or TensorRT."""
    gpu, tensorrt = this_gpu(), tensorrt_of(_installed())
    return Ties(gpu, *tensorrt) if gpu and tensorrt else None


def _installed() -> dict[str, str]:
    found = {}
    for name in TENSORRT:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
