"""The ONNX and TensorRT variants, with the program that makes each and its requirements."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution

from millrace.export.onnx import conversions
from millrace.models.common.hardware import TENSORRT as TENSORRT_PACKAGES
from millrace.models.common.hardware import Gpu

FP32 = "onnx-fp32"
MIXED = "onnx-int8-mixed"
STATIC_VARIANT = "onnx-int8-static"
"""The mixed-precision variant is this variant with some layers in float."""


@dataclass(frozen=True)
class Variant:
    """How one variant is converted from another.

    Attributes:
        program: name of the conversion program's module.
        options: options of its command line.
        calibrated: whether the program needs calibration rows of the train split.
        source: name of the variant that is converted.
        package: optional Python module that the program needs, and the name of the Millrace extra
            that installs it; empty if the program needs none.
        compute_capability: lowest compute capability of the GPU; None if no GPU is needed.
    """

    program: str
    options: tuple[str, ...] = ()
    calibrated: bool = False
    source: str = FP32
    package: str = ""
    compute_capability: tuple[int, int] | None = None


HALF = f"{conversions.__name__}.half"
OPTIMIZED = f"{conversions.__name__}.optimized"
DYNAMIC = f"{conversions.__name__}.int8_dynamic"
STATIC = f"{conversions.__name__}.int8_static"
SENSITIVITY = f"{conversions.__name__}.sensitivity"
SMOOTH = f"{conversions.__name__}.smooth_quant"
WEIGHTS = f"{conversions.__name__}.weights_only"
BF16 = f"{conversions.__name__}.bfloat16"
FP8 = f"{conversions.__name__}.fp8_static"
MODELOPT = f"{conversions.__name__}.modelopt_onnx"
TENSORRT = f"{conversions.__name__}.tensorrt_engine"
SYMMETRIC = ("--activations", "s8", "--symmetric")


def _modelopt(mode: str) -> Variant:
    return Variant(MODELOPT, ("--mode", mode), calibrated=True, package="modelopt")


VARIANTS: Mapping[str, Variant] = {
    "onnx-optimized": Variant(OPTIMIZED),
    "onnx-fp16": Variant(HALF),
    "onnx-bf16": Variant(BF16),
    "onnx-fp8": Variant(FP8, calibrated=True),
    "onnx-int8-dynamic": Variant(DYNAMIC),
    "onnx-int8-static": Variant(STATIC, calibrated=True),
    "onnx-int8-static-s8": Variant(STATIC, ("--activations", "s8"), calibrated=True),
    "onnx-int8-symmetric": Variant(STATIC, SYMMETRIC, calibrated=True),
    "onnx-int8-static-entropy": Variant(STATIC, ("--method", "entropy"), calibrated=True),
    "onnx-int8-static-percentile": Variant(STATIC, ("--method", "percentile"), calibrated=True),
    "onnx-int8-smooth": Variant(SMOOTH, calibrated=True),
    "onnx-int8-weights": Variant(WEIGHTS, ("--bits", "8")),
    "onnx-int4-weights": Variant(WEIGHTS, ("--bits", "4")),
    "onnx-int8-modelopt": _modelopt("int8"),
    "onnx-fp8-modelopt": _modelopt("fp8"),
    "onnx-int4-modelopt": _modelopt("int4"),
}
"""All ONNX variants except `FP32`, which PyTorch exports, and `MIXED`, which a search finds."""


def _engine(source: str, compute_capability: tuple[int, int] = (7, 5)) -> Variant:
    """Return an engine variant; the default compute capability is TensorRT 11's lowest."""
    return Variant(
        TENSORRT, source=source, package="tensorrt", compute_capability=compute_capability
    )


ENGINES: Mapping[str, Variant] = {
    "tensorrt-fp32": _engine(FP32),
    "tensorrt-fp16": _engine("onnx-fp16"),
    "tensorrt-bf16": _engine("onnx-bf16", (8, 0)),
    "tensorrt-int8": _engine("onnx-int8-symmetric"),
    "tensorrt-fp8": _engine("onnx-fp8", (8, 9)),
    "tensorrt-int8-modelopt": _engine("onnx-int8-modelopt"),
    "tensorrt-fp8-modelopt": _engine("onnx-fp8-modelopt", (8, 9)),
    "tensorrt-int4-modelopt": _engine("onnx-int4-modelopt"),
}
"""Engines for the GPU of this machine, with the number types of their source variant. They are
measured, but never registered."""
GRAPH_VARIANTS: tuple[str, ...] = (FP32, *VARIANTS, MIXED, *ENGINES)
"""The names that `export.candidates` accepts."""


DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "tensorrt": tuple(TENSORRT_PACKAGES),
    "modelopt": ("nvidia-modelopt",),
}
"""The distributions that install each package; any one of them suffices."""


def lacking(variant: Variant, gpu: Gpu | None, installed: Collection[str]) -> str | None:
    """Return what a variant needs and this machine lacks, or None if it lacks nothing.

    Args:
        variant: the variant.
        gpu: the GPU of this machine; None if it has none.
        installed: the packages of `DISTRIBUTIONS` that are installed.
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
