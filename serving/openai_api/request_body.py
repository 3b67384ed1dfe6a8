"""Parse and check the body of a request; errors name the wrong field, as OpenAI's errors do.

Names and bounds of the fields are those of OpenAI's API reference (completions, chat
completions); `top_k`, `repetition_penalty`, `min_tokens` and `ignore_eos` are vLLM's. OpenAI
parameters that this server does not support are listed below with their neutral values. Only these
values are accepted.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from millrace.models.common.errors import nearest
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.triton.streams.stream_request import Messages, Sampling

MAX_ANSWERS = 128
MAX_PROMPTS = 64
MAX_INT32 = 2**31 - 1
SEED_SPACE = 2**63

IGNORED = (
    *("user", "metadata", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)
"""Parameters that are accepted with any value because they do not change the answer."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {"logit_bias": (None, {})}
NEUTRAL_FOR_COMPLETIONS: Mapping[str, tuple[object, ...]] = {
    **_NEUTRAL,
    "best_of": (None, 1),
    "echo": (None, False),
    "logprobs": (None,),
    "suffix": (None, ""),
}
NEUTRAL_FOR_CHATS: Mapping[str, tuple[object, ...]] = {
    **_NEUTRAL,
    "audio": (None,),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "logprobs": (None, False),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "parallel_tool_calls": (None, True, False),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
    "verbosity": (None,),
    "web_search_options": (None,),
}

Positive = Annotated[int, Field(ge=1, le=MAX_INT32)]
Penalty = Annotated[float, Field(ge=-2, le=2)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(_Fields):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class RequestFields(_Fields):
    """The fields that completions and chat completions share."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_ANSWERS)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, Field(ge=-SEED_SPACE, lt=SEED_SPACE)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_tokens: Positive | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    ignore_eos: bool | None = None


class CompletionFields(RequestFields):
    """The body of a completion."""

    prompt: Any


class TextPart(_Fields):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(_Fields):
    """A message of a chat; empty fields, such as `tool_calls`, are dropped."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        empty: tuple[object, ...] = (None, [])
        return {key: each for key, each in values.items() if key == "content" or each not in empty}


class ChatFields(RequestFields):
    """The body of a chat completion."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Positive | None = None


@dataclass(frozen=True)
class TextRequest:
    """A checked request for text.

    Attributes:
        model: the name of the model.
        prompts: the texts to continue, or the messages of one chat.
        sampling: how each answer is generated; `n` is the number of answers to each prompt.
        stream: whether the answers are streamed.
        include_usage: whether a stream ends with the usage in tokens.
        is_chat: whether the request is a chat completion.
    """

    model: str
    prompts: tuple[str | Messages, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    is_chat: bool

    @property
    def n(self) -> int:
        """The number of answers to each prompt."""
        return self.sampling.n or 1

    @property
    def output_tokens(self) -> int:
        """The largest number of tokens of all answers together."""
        return len(self.prompts) * self.n * (self.sampling.max_tokens or MAX_TOKENS)

    @property
    def prompt_field(self) -> str:
        """The request's field that holds the prompt."""
        return "messages" if self.is_chat else "prompt"


Fields = TypeVar("Fields", bound=RequestFields)
MAX_SHOWN = 60
ROLE_ALIASES = {"developer": "system"}
"""OpenAI's newer role names, and the older names that chat templates know."""


def read_completion(body: bytes) -> TextRequest:
    """Parse the body of a completion.

    Raises:
        ApiError: 400, with the name of the wrong field.
    """
    fields = _parse_body(CompletionFields, body, NEUTRAL_FOR_COMPLETIONS)
    return _build_request(fields, _read_prompts(fields.prompt), fields.max_tokens, is_chat=False)


def read_chat(body: bytes) -> TextRequest:
    """Parse the body of a chat completion.

    Raises:
        ApiError: 400, with the name of the wrong field.
    """
    fields = _parse_body(ChatFields, body, NEUTRAL_FOR_CHATS)
    newer, older = fields.max_completion_tokens, fields.max_tokens
    if None not in (newer, older) and newer != older:
        raise ApiError(
            400,
            f"'max_tokens' is {older} and 'max_completion_tokens' is {newer}: set one of them.",
            param="max_tokens",
        )
    messages = tuple(_convert_message(message) for message in fields.messages)
    return _build_request(fields, (messages,), newer if older is None else older, is_chat=True)


def _build_request(
    fields: RequestFields,
    prompts: tuple[str | Messages, ...],
    max_tokens: int | None,
    *,
    is_chat: bool,
) -> TextRequest:
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise ApiError(
            400, "'stream_options' is only allowed with 'stream': true.", param="stream_options"
        )
    sampling = Sampling(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        seed=fields.seed,
        stop=fields.stop,
        # always set, because the backends have different defaults
        max_tokens=max_tokens or MAX_TOKENS,
        min_tokens=fields.min_tokens,
        n=fields.n,
        ignore_eos=fields.ignore_eos,
    )
    include_usage = bool(options and options.include_usage)
    return TextRequest(fields.model, prompts, sampling, bool(fields.stream), include_usage, is_chat)


def _parse_body(
    fields_type: type[Fields], body: bytes, neutral: Mapping[str, tuple[object, ...]]
) -> Fields:
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"The body is not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ApiError(400, "The body must be a JSON object.")
    for name, allowed in neutral.items():
        if name in values and values.pop(name) not in allowed:
            raise _unsupported_parameter(name, allowed)
    values = {name: value for name, value in values.items() if name not in IGNORED}
    try:
        return fields_type.model_validate(values)
    except ValidationError as error:
        raise _invalid_field(error, [*fields_type.model_fields, *neutral, *IGNORED]) from None


def _unsupported_parameter(name: str, allowed: tuple[object, ...]) -> ApiError:
    known = ", ".join(json.dumps(value) for value in allowed if value is not None)
    instead = f" with a value other than {known}" if known else ""
    return ApiError(
        400,
        f"The parameter {name!r} is not supported{instead} by this server.",
        param=name,
        code="unsupported_parameter",
    )


def _invalid_field(error: ValidationError, known: list[str]) -> ApiError:
    # each type of a union has an error; the deepest error is that of the type that fits best
    first = max(error.errors(include_url=False), key=lambda each: len(_field_path(each["loc"])))
    path = _field_path(first["loc"])
    param = _format_path(path)
    if first["type"] == "missing":
        message = f"Missing required parameter: {param!r}."
        return ApiError(400, message, param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        hint = nearest(str(path[-1]), known) if len(path) == 1 else None
        message = f"Unknown or unsupported parameter: {param!r}{f'; {hint}' if hint else '.'}"
        return ApiError(400, message, param=param, code="unknown_parameter")
    message = f"Invalid value for {param!r}: {first['msg']}, and it is {_shorten(first['input'])}."
    return ApiError(400, message, param=param, code="invalid_value")


def _field_path(loc: tuple[int | str, ...]) -> list[int | str]:
    """Return the keys and indices of a field, without pydantic's names for the types of a union."""
    return [
        part
        for part in loc
        if isinstance(part, int) or (part not in ("str", "int", "float") and "[" not in part)
    ]


def _format_path(path: list[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _shorten(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _read_prompts(prompt: Any) -> tuple[str, ...]:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if isinstance(prompts, list) and any(isinstance(each, int | list) for each in prompts):
        raise ApiError(
            400,
            "A prompt of token ids is not supported by this server; send the prompt as text.",
            param="prompt",
            code="unsupported_value",
        )
    texts = isinstance(prompts, list) and all(isinstance(each, str) for each in prompts)
    if not texts or not 1 <= len(prompts) <= MAX_PROMPTS:
        raise ApiError(
            400,
            f"Invalid value for 'prompt': it is {_shorten(prompt)}, and must be a string or a list "
            f"of 1 to {MAX_PROMPTS} strings.",
            param="prompt",
            code="invalid_value",
        )
    return tuple(prompts)


def _convert_message(message: Message) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    values = {"role": ROLE_ALIASES.get(message.role, message.role), "content": text}
    return values | ({"name": message.name} if message.name is not None else {})
