"""The pipeline file: its parts, each a `Spec` in its own module, and the code that reads it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, core_schema


class Spec(BaseModel):
    """Base of every part of a pipeline file: frozen; unknown keys and infinities are refused.

    `millrace.models.config.pipeline_file` turns a validation error into a message with the line and
    the nearest valid key.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_true_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse `true` where a number is meant: pydantic reads it as 1, and false as 0."""
        if isinstance(value, bool) and info.field_name is not None:
            types = _types_in(cls.model_fields[info.field_name].annotation)
            if types & {int, float} and not types & {bool, Any, value}:
                raise ValueError(f"{str(value).lower()} is not a number")
        return value


def _types_in(annotation: Any) -> set[Any]:
    """Return an annotation and the types that it is made of."""
    return {annotation}.union(*map(_types_in, get_args(annotation)))


@dataclass(frozen=True)
class OneOf:
    """Annotation of a string that, as with `Literal`, must be one of certain values.

    Attributes:
        names: function that returns the allowed values; it is called only when they are needed.
    """

    names: Callable[[], Iterable[str]]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return pydantic's validation of a value."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, _: Any, __: Any) -> dict[str, Any]:
        """Return the JSON Schema of a value."""
        return {"enum": list(self.names()), "type": "string"}

    def _check(self, value: str) -> str:
        names = [repr(name) for name in self.names()]
        if repr(value) in names:
            return value
        expected = " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        raise PydanticCustomError(
            "literal_error", "Input should be {expected}", {"expected": expected}
        )
