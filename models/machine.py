"""What kind of machine this is, as far as that decides how fast and how exact a form is."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

FEATURES = (
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimddp", "i8mm", "bf16", "sve"),
)
"""Flags of /proc/cpuinfo that choose kernels of ONNX Runtime, x86 and then ARM."""
CPUINFO = Path("/proc/cpuinfo")


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
