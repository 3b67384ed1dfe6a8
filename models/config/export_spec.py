"""The part `export`: which variants of the model to make, and how much worse they may be."""

from typing import Annotated, Literal

from pydantic import Field

from millrace.models.common.subprocess_runner import Limits
from millrace.models.config import OneOf, Spec
from millrace.models.config.model_kind import all_variants

VariantName = Annotated[str, OneOf(all_variants)]
GroupSize = Literal[-1, 16, 32, 64, 128, 256]
"""Group sizes of 4-bit weights, in nncf's notation: -1 is a whole row."""


class ExportLimits(Spec):
    """Limits of the subprocess of one conversion or one measurement."""

    seconds: float = Field(600.0, gt=0, le=1e6, description="Wall time.")
    memory_gib: float = Field(16.0, gt=0, le=1e6, description="Memory of the host, in GiB.")

    @property
    def of_process(self) -> Limits:
        """The limits of the subprocess."""
        return Limits(self.seconds, int(self.memory_gib * 2**30))


class ExportSpec(Spec):
    """Which variants of the model to make, and how much worse they may be."""

    candidates: tuple[VariantName, ...] = Field(
        ("onnx-fp32", "onnx-optimized", "onnx-int8-dynamic", "onnx-int8-static"),
        min_length=1,
        description="Variants to export and measure, the preferred ones first: of two equally good "
        "ones the first is chosen. A causal_lm has other variants; its default is openvino-fp32, "
        "openvino-int8 and openvino-int4. gradient_boosting has only onnx-fp32.",
    )
    objective: Literal["latency", "throughput", "size", "metric"] = Field(
        "latency",
        description="How one of the candidates that pass the gates is chosen. latency: lowest p50 "
        "of one row. throughput: most rows per second in full batches. size: fewest bytes. metric: "
        "best task metric.",
    )
    max_metric_loss: float = Field(
        0.01, ge=0, le=1, description="Largest relative loss of the metric against PyTorch."
    )
    max_perplexity_increase: float = Field(
        0.01,
        ge=0,
        description="Largest relative increase of the perplexity against PyTorch; causal_lm only.",
    )
    group_size: GroupSize = Field(
        64,
        description="Number of 4-bit weights that share a scale; -1: all weights of a row. A layer "
        "whose width is not a multiple of this number gets the largest power of two, at least 16, "
        "that divides the width. If there is none, the layer gets 8-bit weights. causal_lm only.",
    )
    ratio: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the layers' weights that get 4 bits in a 4-bit variant; the others, "
        "which are more sensitive, get 8; causal_lm only.",
    )
    max_size_mib: float | None = Field(
        None, gt=0, description="Largest size of the files, in MiB; null: no limit."
    )
    limits: ExportLimits = Field(
        default_factory=ExportLimits, description="Limits of one conversion or measurement."
    )
    calibration_rows: int = Field(
        512, ge=1, description="Rows of the train split that calibrate static quantization."
    )
    golden_rows: int = Field(
        32, ge=1, le=4096, description="Rows of the golden batch, stored with the version."
    )
