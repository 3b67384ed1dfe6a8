"""The parts of `training` for a smaller model: a teacher, pruning, and learning with integers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from millrace.models.config.spec import Spec

VersionName = Annotated[str, Field(pattern=r"^[^@/]+(@[^@/]+|/[1-9][0-9]*)?$")]
"""A registered model: NAME for its champion, NAME@ALIAS or NAME/VERSION."""


def model_of(name: str) -> str:
    """Return the registered model of a version's name."""
    return name.partition("/")[0].partition("@")[0]


class DistillationSpec(Spec):
    """A registered version whose answers are learnt beside the true ones."""

    teacher: VersionName = Field(
        description="A registered model of the same columns and classes: NAME for its champion, "
        "NAME@ALIAS or NAME/VERSION."
    )
    temperature: float = Field(
        2.0, gt=0, description="Of both softmaxes; the higher, the more the wrong classes count."
    )
    weight: float = Field(0.5, ge=0, le=1, description="Share of the teacher in the loss.")


class PruningSpec(Spec):
    """Weights, or whole neurons and channels, that training does without at its end."""

    kind: Literal["magnitude", "structured"] = Field(
        "magnitude",
        description="magnitude: the smallest weights of linear and convolution layers become zero; "
        "size and speed stay. structured: whole neurons and channels are removed, so the model is "
        "smaller and faster; for mlp, cnn, and classes that have removable_units.",
    )
    sparsity: float = Field(0.5, gt=0, lt=1, description="Share that is pruned in the end.")
    start: float = Field(0.2, ge=0, lt=1, description="Share of training before pruning begins.")
    end: float = Field(
        0.8, gt=0, le=1, description="Share of training after which the sparsity is reached."
    )
    frequency: int = Field(10, ge=1, description="Steps from one pruning to the next.")
    scope: Literal["layer", "global"] = Field(
        "layer",
        description="Whether each layer comes to this sparsity or all together; structured goes "
        "by layer only.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"start {self.start:g} must be before end {self.end:g}")
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        if self.kind == "structured" and self.scope == "global":
            raise ValueError("norms of different layers do not compare: structured needs layer")
        return self


class QuantizationAwareSpec(Spec):
    """Training on rounded weights and activations, for int8 forms that lose less."""

    start: float = Field(0.5, ge=0, lt=1, description="Share of training before rounding begins.")
    averaging_constant: float = Field(
        0.05, gt=0, le=1, description="Share of each batch in the moving range of activations."
    )
