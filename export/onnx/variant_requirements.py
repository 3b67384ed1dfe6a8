"""What a variant needs that is not on every machine, and the reason where it is not there."""

from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, distribution

from millrace.export.onnx.graph_variants import Variant
from millrace.models.common.hardware import TENSORRT, Gpu

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "tensorrt": tuple(TENSORRT),
    "modelopt": ("nvidia-modelopt",),
}
"""What installs each package, any of them."""


def lacking(variant: Variant, gpu: Gpu | None, installed: Collection[str]) -> str | None:
    """Return why a variant cannot be made here, or None if nothing is known to stand against it.

    Args:
        variant: the variant.
        gpu: the GPU of this machine.
        installed: the packages of `DISTRIBUTIONS` that are there.
    """
    if variant.compute_capability is not None:
        if gpu is None:
            return "no NVIDIA GPU on this machine"
        least = ".".join(map(str, variant.compute_capability))
        if tuple(map(int, gpu.compute_capability.split("."))) < variant.compute_capability:
            has = f"{gpu.name} has compute capability {gpu.compute_capability}"
            return f"{has}, and {least} is needed"
    if variant.package and variant.package not in installed:
        name = DISTRIBUTIONS[variant.package][-1]
        return f"the package {name} is not installed: pip install 'millrace[{variant.package}]'"
    return None


def installed_packages() -> frozenset[str]:
    """Return the packages of `DISTRIBUTIONS` that are installed, without importing one."""
    return frozenset(name for name, kinds in DISTRIBUTIONS.items() if any(map(_is_there, kinds)))


def _is_there(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
