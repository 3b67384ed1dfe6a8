"""The part `serving.replicas`: how many Tritons `millrace up` runs behind its one address."""

from typing import Any

from pydantic import Field, model_validator

from millrace.models.config import Spec

MOST = 16


class ReplicasSpec(Spec):
    """How many Tritons serve, each with all models of the home."""

    min: int = Field(1, ge=1, le=MOST, description="Fewest replicas of Triton.")
    max: int = Field(
        1,
        ge=1,
        le=MOST,
        description="Most replicas; when left out, as many as `min`, so their number is fixed.",
    )
    dry_run: bool = Field(
        False,
        description="Only log how many replicas the load needs, and run `min`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fix_number(cls, values: Any) -> Any:
        """Set the most to the fewest if only the fewest is given."""
        if isinstance(values, dict) and "min" in values and "max" not in values:
            return values | {"max": values["min"]}
        return values

    @model_validator(mode="after")
    def _in_order(self) -> "ReplicasSpec":
        if self.max < self.min:
            raise ValueError(f"max {self.max} is less than min {self.min}")
        return self
