"""Parse and check the body of a request; errors name the field, as OpenAI's do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from millrace.models.common.errors import nearest
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.request_fields import (
    IGNORED,
    MAX_PROMPTS,
    NEUTRAL_FOR_CHATS,
    NEUTRAL_FOR_COMPLETIONS,
    ChatFields,
    CompletionFields,
    Message,
    RequestFields,
)
from millrace.serving.triton.streams.stream_request import Messages, Sampling


@dataclass(frozen=True)
class TextRequest:
    """A checked request for text.

    Attributes:
        model: its name.
        prompts: the texts to continue, or the messages of one chat.
        sampling: how each answer is generated; `n` answers to each prompt.
        stream: whether the answers are streamed.
        include_usage: whether a stream ends with its usage.
        is_chat: whether it is a chat completion.
    """

    model: str
    prompts: tuple[str | Messages, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    is_chat: bool

    @property
    def n(self) -> int:
        """Answers to each prompt."""
        return self.sampling.n or 1

    @property
    def output_tokens(self) -> int:
        """Tokens that all answers together may have."""
        return len(self.prompts) * self.n * (self.sampling.max_tokens or MAX_TOKENS)

    @property
    def prompt_field(self) -> str:
        """The request's field that holds the prompt."""
        return "messages" if self.is_chat else "prompt"


Fields = TypeVar("Fields", bound=RequestFields)
MAX_SHOWN = 60
ROLE_ALIASES = {"developer": "system"}
"""OpenAI's newer names of roles, which chat templates do not know."""


def read_completion(body: bytes) -> TextRequest:
    """Read the body of a completion.

    Raises:
        ApiError: 400, with the field that is wrong.
    """
    fields = _parse_body(CompletionFields, body, NEUTRAL_FOR_COMPLETIONS)
    return _build_request(fields, _read_prompts(fields.prompt), fields.max_tokens, is_chat=False)


def read_chat(body: bytes) -> TextRequest:
    """Read the body of a chat completion.

    Raises:
        ApiError: 400, with the field that is wrong.
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
        # always set: each backend has a default of its own
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
    instead = f" with another value than {known}" if known else ""
    return ApiError(
        400,
        f"The parameter {name!r} is not supported{instead} by this server.",
        param=name,
        code="unsupported_parameter",
    )


def _invalid_field(error: ValidationError, known: list[str]) -> ApiError:
    # each member of a union has an error; the deepest is of the member that fits best
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
    """Return keys and indices, without the names that pydantic gives the members of a union."""
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
            "A prompt of token ids is not supported by this server; send its text.",
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
