"""The cores and the GPU of this machine, which decide how fast and how exact a variant is."""

import os
import platform
import re
import resource
import subprocess
import time
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
"""Flags of /proc/cpuinfo by which ONNX Runtime chooses kernels: x86, then ARM."""
CPUINFO = Path("/proc/cpuinfo")
CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """A machine that models are measured on, or served by.

    Attributes:
        processor: its model name.
        cores: logical cores that this process may use.
        flags: its instruction sets, a subset of `FEATURES`.
        gpu: name of the GPU; empty if there is none.
    """

    processor: str
    cores: int
    flags: tuple[str, ...] = ()
    gpu: str = ""

    @property
    def kind(self) -> str:
        """GPU name, or CPU architecture and flags; only measurements of one kind are comparable."""
        return self.gpu or ", ".join((platform.machine(), *self.flags))

    def __str__(self) -> str:
        """Return a description for people."""
        return f"{self.gpu or self.processor} ({self.kind}), {self.cores} cores"


def this_machine() -> Machine:
    """Return the processor, the cores and the GPU of this machine."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.is_file() else []
    flags = _field(lines, "flags") or _field(lines, "Features")
    known = set(flags.split())
    has_affinity = hasattr(os, "sched_getaffinity")
    return Machine(
        processor=_field(lines, "model name") or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        flags=tuple(flag for flag in FEATURES if flag in known),
        gpu=_gpu_name(),
    )


def memory_bytes(proc: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> int:
    """Return the bytes that this process may use: the machine's memory, or a lower cgroup limit.

    Args:
        proc: file that names the cgroups of this process, one per line.
        root: folder where the cgroups are mounted.
    """
    limits = [psutil.virtual_memory().total]
    with suppress(OSError):
        for line in proc.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":  # version 2
                limits += _read_limits(root, path, "memory.max")
            elif "memory" in controllers.split(","):
                limits += _read_limits(root / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def peak_memory_mib() -> float:
    """Return the largest memory that this process had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _read_limits(root: Path, path: str, name: str) -> list[int]:
    """Return the memory limits, in bytes, of a cgroup, of its parents and of the root.

    In a container the root is the container's own cgroup.
    """
    folder, limits = root / path.lstrip("/"), []
    for each in dict.fromkeys([folder, *folder.parents, root]):
        with suppress(OSError, ValueError):
            if each.is_relative_to(root):
                limits.append(int((each / name).read_text()))
    return limits


def measure_other_load(seconds: float = 0.5) -> float:
    """Return the share of all cores that other processes use over the next seconds, 0 to 1.

    This process and all of its descendants are left out.
    """
    before = (_busy_seconds(), _own_seconds())
    time.sleep(seconds)
    busy, own = _busy_seconds() - before[0], _own_seconds() - before[1]
    return min(max(0.0, busy - max(own, 0.0)) / (seconds * (psutil.cpu_count() or 1)), 1.0)


def _busy_seconds() -> float:
    """Return the CPU seconds of all processes since boot."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_seconds() -> float:
    """Return the CPU seconds of this process and its descendants."""
    this = psutil.Process()
    spent = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # the process has ended
            times = process.cpu_times()
            spent += times.user + times.system
    return spent


def _field(lines: list[str], name: str) -> str:
    """Return the first value of a field of /proc/cpuinfo."""
    values = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in values if key.strip() == name), "")


def _gpu_name() -> str:
    """Return the name of the first GPU that ONNX Runtime can use; empty if there is none."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return ""
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else ""


QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
QUERY_SECONDS = 20.0
"""Time limit of nvidia-smi. Its first call loads the driver, which takes seconds."""
TENSORRT = {"tensorrt-cu13": "13", "tensorrt-cu12": "12", "tensorrt": ""}
"""Packages of TensorRT, and the CUDA version that each is built for; empty if unknown."""


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU.

    Attributes:
        name: name that the driver reports.
        compute_capability: e.g. `9.0`.
        driver: version of the driver.
    """

    name: str
    compute_capability: str
    driver: str


@dataclass(frozen=True)
class EngineFingerprint:
    """The only setup on which a TensorRT engine runs, and for which its measurements are valid.

    Attributes:
        gpu: the GPU, and its driver.
        tensorrt: version of TensorRT.
        cuda: major version of CUDA that TensorRT is built for; empty if unknown.
    """

    gpu: Gpu
    tensorrt: str
    cuda: str = ""

    def __str__(self) -> str:
        """Return a description for people, and to compare two machines."""
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
        """Filesystem-safe identifier: letters, digits, '.' and '-'."""
        gpu = self.gpu
        words = [gpu.name, f"sm{gpu.compute_capability.replace('.', '')}", f"driver-{gpu.driver}"]
        words += [f"tensorrt-{self.tensorrt}", *([f"cuda-{self.cuda}"] if self.cuda else [])]
        plain = ("".join(c if c.isalnum() or c in ".-" else "-" for c in word) for word in words)
        return ".".join(plain)


def parse_gpu(output: str) -> Gpu | None:
    """Return the GPU in the first line of nvidia-smi's output; None if there is none."""
    fields = [field.strip() for field in output.strip().partition("\n")[0].split(",")]
    is_gpu = len(fields) == 3 and all(fields) and re.fullmatch(r"[0-9]+\.[0-9]+", fields[1])
    return Gpu(*fields) if is_gpu else None


@cache
def this_gpu() -> Gpu | None:
    """Return the first NVIDIA GPU of this machine by nvidia-smi; None if there is none.

    All GPUs of a machine are assumed to be of one kind.
    """
    try:
        query = subprocess.run(
            QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_gpu(query.stdout)


def find_tensorrt() -> tuple[str, str] | None:
    """Return the version of the installed TensorRT and of its CUDA; None if none is installed."""
    for name, cuda in TENSORRT.items():
        with suppress(PackageNotFoundError):
            return version(name), cuda
    return None


def this_fingerprint() -> EngineFingerprint | None:
    """Return the fingerprint of an engine that is built here; None without a GPU or TensorRT."""
    gpu, tensorrt = this_gpu(), find_tensorrt()
    return EngineFingerprint(gpu, *tensorrt) if gpu and tensorrt else None
