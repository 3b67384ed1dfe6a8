"""The parts of `training` that make a smaller model: learning from a teacher."""

from typing import Annotated

from pydantic import Field

from models.specs.base import Spec

VersionName = Annotated[str, Field(pattern=r"^[^@/]+(@[^@/]+|/[1-9][0-9]*)?$")]
"""A registered model: NAME for its champion, NAME@ALIAS or NAME/VERSION."""


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
