"""The parts of `training` that make a model smaller: distillation, pruning, quantization."""

from typing import Literal, Self

from pydantic import Field, model_validator

from millrace.models.config import Spec
from millrace.models.config.model_uri import VersionName


class DistillationSpec(Spec):
    """Distillation: training on the answers of a registered version, besides the targets."""

    teacher: VersionName = Field(
        description="A registered model of the same columns and classes: NAME for its champion, "
        "NAME@ALIAS or NAME/VERSION."
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="Temperature of the softmax of teacher and student; the higher, the more the "
        "wrong classes count.",
    )
    weight: float = Field(0.5, ge=0, le=1, description="Weight of the teacher in the loss.")


class PruningSpec(Spec):
    """Weights, or whole neurons and channels, that training removes."""

    kind: Literal["magnitude", "structured"] = Field(
        "magnitude",
        description="magnitude: the smallest weights of linear and convolution layers become zero; "
        "size and speed stay. structured: whole neurons and channels are removed, so the model is "
        "smaller and faster; for mlp, cnn, and your own classes with a method removable_units().",
    )
    sparsity: float = Field(
        0.5,
        gt=0,
        lt=1,
        description="Share of the weights, or of the neurons and channels, that is zero or removed "
        "at the end.",
    )
    start: float = Field(0.2, ge=0, lt=1, description="Share of training before pruning begins.")
    end: float = Field(
        0.8, gt=0, le=1, description="Share of training after which the full sparsity is reached."
    )
    frequency: int = Field(10, ge=1, description="Steps from one pruning to the next.")
    scope: Literal["layer", "global"] = Field(
        "layer",
        description="layer: each layer reaches the sparsity. global: all layers together reach it; "
        "not for structured.",
    )

    @model_validator(mode="after")
    def _require_order(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"start {self.start:g} must be before end {self.end:g}")
        return self

    @model_validator(mode="after")
    def _require_comparable(self) -> Self:
        if self.kind == "structured" and self.scope == "global":
            raise ValueError(
                "kind: structured needs scope: layer, because the L1 norms of units in different "
                "layers are not comparable"
            )
        return self


class QuantizationAwareSpec(Spec):
    """Training on rounded weights and activations, so that int8 variants lose less accuracy."""

    start: float = Field(0.5, ge=0, lt=1, description="Share of training before rounding begins.")
    averaging_constant: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Weight of a new batch in the moving average of the activations' range.",
    )
