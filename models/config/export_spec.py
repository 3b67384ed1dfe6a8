"""The part `export`: which variants of the model to make, and how much they may lose."""

from typing import Annotated, Literal

from pydantic import Field

from millrace.models.common.subprocess_runner import Limits
from millrace.models.config import OneOf, Spec
from millrace.models.config.model_kind import all_variants

VariantName = Annotated[str, OneOf(all_variants)]
GroupSize = Literal[-1, 16, 32, 64, 128, 256]
"""Group sizes of 4-bit weights, as nncf counts them."""


class ExportLimits(Spec):
    """Limits of the process of one conversion or one measurement."""

    seconds: float = Field(600.0, gt=0, le=1e6, description="Wall time.")
    memory_gib: float = Field(16.0, gt=0, le=1e6, description="Memory of the host, in GiB.")

    @property
    def of_process(self) -> Limits:
        """The limits of the subprocess."""
        return Limits(self.seconds, int(self.memory_gib * 2**30))


class ExportSpec(Spec):
    """Which variants of the model to make, and how much they may lose."""

    candidates: tuple[VariantName, ...] = Field(
        ("onnx-fp32", "onnx-optimized", "onnx-int8-dynamic", "onnx-int8-static"),
        min_length=1,
        description="Variants to export and measure, the preferred ones first: of two that are as "
        "good, the first is chosen. A causal_lm has its own; the default is openvino-fp32, "
        "openvino-int8 and openvino-int4. gradient_boosting has onnx-fp32 alone.",
    )
    objective: Literal["latency", "throughput", "size", "metric"] = Field(
        "latency",
        description="What the chosen candidate is best at, among those that pass: p50 of one row, "
        "rows per second in full batches, bytes, or the task metric.",
    )
    max_metric_loss: float = Field(
        0.01, ge=0, le=1, description="Largest loss of the metric against PyTorch, relative."
    )
    max_perplexity_increase: float = Field(
        0.01,
        ge=0,
        description="Largest increase of the perplexity against PyTorch, relative; causal_lm only.",
    )
    group_size: GroupSize = Field(
        64,
        description="Weights of 4 bits that share a scale, or -1 for all of a row; a layer whose "
        "width it does not divide gets groups of the largest power of two that does, of 16 at "
        "least, or 8 bits; causal_lm only.",
    )
    ratio: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the layers' weights that get 4 bits in a 4-bit variant; the others, "
        "the more sensitive, get 8; causal_lm only.",
    )
    max_size_mib: float | None = Field(
        None, gt=0, description="Largest file, in MiB; null for any."
    )
    limits: ExportLimits = Field(
        default_factory=ExportLimits, description="What one conversion may take."
    )
    calibration_rows: int = Field(
        512, ge=1, description="Rows of the train split that calibrate static quantization."
    )
    golden_rows: int = Field(
        32, ge=1, le=4096, description="Rows of the golden batch, stored with the version."
    )
