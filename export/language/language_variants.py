"""The variants of a language model, with the program that makes each and its requirements."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from millrace.export.language import conversions
from millrace.models.common.hardware import this_gpu
from millrace.models.inference.language_engine import EngineName

EXACT_VARIANT = "openvino-fp32"
"""The float32 variant, from which the other OpenVINO variants are converted."""
CHECKPOINT = "checkpoint"
"""The source of a variant that is converted from the training checkpoint."""


@dataclass(frozen=True)
class LanguageVariant:
    """How one variant is converted from another.

    Attributes:
        program: name of the conversion program's module.
        options: options of its command line.
        grouped: whether weights are quantized in groups, which `Groups` describes.
        calibrated: whether the program needs calibration text of the train split.
        source: name of the variant that is converted, or `CHECKPOINT`.
        package: optional Python module that the program needs; empty if it needs none.
        distribution: name of the distribution that installs the package.
        install: command that installs the package, if `pip install` of the distribution is not
            enough.
        engine: engine that loads the variant.
        is_served: whether a Triton backend here can serve the variant.
    """

    program: str
    options: tuple[str, ...] = ()
    grouped: bool = False
    calibrated: bool = False
    source: str = EXACT_VARIANT
    package: str = ""
    distribution: str = ""
    install: str = ""
    engine: EngineName = "openvino_genai"
    is_served: bool = True

    def lacking(self, vllm_python: Path | None = None) -> str | None:
        """Return what the variant needs and this machine lacks, or None if it lacks nothing.

        Args:
            vllm_python: Python interpreter that has vLLM; None for the current interpreter.
        """
        if self.engine == "vllm" and (reason := lacking_vllm(vllm_python)):
            return reason
        if self.package and find_spec(self.package) is None:
            name = self.distribution
            how = self.install or f"pip install {name}"
            return f"the package {name} is not installed: {how}"
        return None


def lacking_vllm(python: Path | None) -> str | None:
    """Return what this machine lacks to measure a variant with vLLM, or None if it lacks nothing.

    Args:
        python: Python interpreter that has vLLM; None for the current interpreter.
    """
    if this_gpu() is None:
        return "vLLM measures this variant on an NVIDIA GPU, and this machine has none"
    if python is None and find_spec("vllm") is None:
        return "vLLM is not installed: set MILLRACE_VLLM_PYTHON to the path of a Python with vLLM"
    if python is not None and not python.is_file():
        return f"MILLRACE_VLLM_PYTHON is not a Python interpreter: there is no file {python}"
    return None


@dataclass(frozen=True)
class Groups:
    """How 4-bit weights are grouped.

    Attributes:
        size: number of weights that share a scale; -1 for all weights of a row.
        ratio: share of the layers that get 4 bits; the other, more sensitive layers get 8 bits.
    """

    size: int = 64
    ratio: float = 1.0

    @property
    def options(self) -> tuple[str, ...]:
        """Options for the command line of `compress_weights`."""
        return ("--group-size", str(self.size), "--ratio", f"{self.ratio:g}")


COMPRESS = f"{conversions.__name__}.compress_weights"
CAST = f"{conversions.__name__}.cast_weights"
TENSORS = f"{conversions.__name__}.compress_tensors"
GENAI = f"{conversions.__name__}.onnx_genai"
INT4 = ("--mode", "int4_asym")


def _genai(precision: str) -> LanguageVariant:
    return LanguageVariant(
        GENAI,
        ("--precision", precision),
        source=CHECKPOINT,
        package="onnxruntime_genai",
        distribution="onnxruntime-genai",
        is_served=False,
    )


def _compressed_tensors(method: str) -> LanguageVariant:
    return LanguageVariant(
        TENSORS,
        ("--method", method),
        calibrated=True,
        source=CHECKPOINT,
        package="llmcompressor",
        distribution="llmcompressor",
        install="pip install 'millrace[llmcompressor]', then "
        "pip install --no-deps llmcompressor==0.14.0.1",
        engine="vllm",
    )


LANGUAGE_VARIANTS: Mapping[str, LanguageVariant] = {
    EXACT_VARIANT: LanguageVariant("millrace.export.openvino.from_checkpoint", source=CHECKPOINT),
    "openvino-int8": LanguageVariant(COMPRESS, ("--mode", "int8_asym")),
    "openvino-int4": LanguageVariant(COMPRESS, INT4, grouped=True),
    "openvino-int4-awq": LanguageVariant(COMPRESS, (*INT4, "--awq"), grouped=True, calibrated=True),
    "openvino-int4-scale": LanguageVariant(
        COMPRESS, (*INT4, "--scale-estimation"), grouped=True, calibrated=True
    ),
    "onnx-genai-int8": _genai("int8"),
    "onnx-genai-int4": _genai("int4"),
    "vllm-bf16": LanguageVariant(CAST, source=CHECKPOINT, engine="vllm"),
    "vllm-w8a8": _compressed_tensors("w8a8"),
    "vllm-awq": _compressed_tensors("awq"),
    "vllm-gptq": _compressed_tensors("gptq"),
}
