"""The pipeline file: its parts, each a `Spec` in a module of its own, and how it is read."""

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Base of every part of a pipeline file: frozen; unknown keys and infinities are refused.

    `millrace.models.config.pipeline_file` turns a refusal into a message with the line and the
    nearest valid key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
