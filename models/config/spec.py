"""What every part of a pipeline file is: a frozen pydantic model that refuses unknown keys."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Base of every part of a pipeline file: frozen; what is unknown or infinite is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
