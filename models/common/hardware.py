"""The cores and the GPU of this machine, as far as they decide how fast and exact a form is."""

import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm", "bf16", "sve"),
)
"""Flags of /proc/cpuinfo that choose kernels of ONNX Runtime, x86 and then ARM."""
CPUINFO = Path("/proc/cpuinfo")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """A machine that models are measured on, or served by.

    Attributes:
        processor: as it calls itself.
        cores: logical cores that this process may use.
        flags: the instruction sets among `FEATURES` that it has.
        gpu: name of the GPU; empty for none.
    """

    processor: str
    cores: int
    flags: tuple[str, ...] = ()
    gpu: str = ""

    @property
    def kind(self) -> str:
        """What two machines share whose measurements can be compared, in words."""
        return self.gpu or ", ".join((platform.machine(), *self.flags))

    def __str__(self) -> str:
        """Return it for people."""
        return f"{self.gpu or self.processor} ({self.kind}), {self.cores} cores"


def this_machine() -> Machine:
    """Look what this machine is."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.is_file() else []
    flags = _field(lines, "flags") or _field(lines, "Features")
    known = set(flags.split())
    return Machine(
        processor=_field(lines, "model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        flags=tuple(flag for flag in FEATURES if flag in known),
        gpu=_gpu(),
    )


def memory_bytes(proc: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Return the memory that this process may use: the machine's, or less where a cgroup says so.

    Args:
        proc: names the cgroups of this process, a line each.
        root: where they are mounted.
    """
    found = [psutil.virtual_memory().total]
    with suppress(OSError):
        for line in proc.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # version 2
                found += _limits(root, path, "memory.max")
            elif "memory" in controllers.split(","):
                found += _limits(root / "memory", path, "memory.limit_in_bytes")
    return min(found)


def _limits(root: Path, path: str, name: str) -> list[int]:
    """Return the limits of a cgroup and of all above it; seen from inside it is the root."""
    folder, found = root / path.lstrip("/"), []
    for each in dict.fromkeys([folder, *folder.parents, root]):
        with suppress(OSError, ValueError):
            if each.is_relative_to(root):
                found.append(int((each / name).read_text()))
    return found


def cores_used(seconds: float = 1.0) -> float:
    """Return the share of all cores in use over the next seconds, 0 to 1."""
    return psutil.cpu_percent(interval=seconds) / 100


def others_use(seconds: float = 1.0) -> float:
    """Return the share of all cores that others use over the next seconds, 0 to 1.

    Others are all processes but this one and those that it started, itself or through another.
    """
    before = (_busy(), _own())
    time.sleep(seconds)
    busy, own = _busy() - before[0], _own() - before[1]
    return min(max(0.0, busy - max(own, 0.0)) / (seconds * (psutil.cpu_count() or 1)), 1.0)


def _busy() -> float:
    """Return the seconds that all cores have worked."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own() -> float:
    """Return the seconds that this process and those below it have worked."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it ended meanwhile
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def _cores() -> int:
    return os.cpu_count() or 1


def _field(lines: list[str], name: str) -> str:
    """Return the first value of a field of /proc/cpuinfo."""
    values = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in values if key.strip() == name), "")


def _gpu() -> str:
    """Return the name of the first GPU that ONNX Runtime could use."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return ""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


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
class EngineFingerprint:
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


def these_ties() -> EngineFingerprint | None:
    """Return what an engine that is built here is tied to; None without a GPU or TensorRT."""
    gpu, tensorrt = this_gpu(), tensorrt_of(_installed())
    return EngineFingerprint(gpu, *tensorrt) if gpu and tensorrt else None


def _installed() -> dict[str, str]:
    found = {}
    for name in TENSORRT:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
