"""A request's body to what it asks for; errors name the field, as OpenAI's do."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from millrace.models.common.errors import nearest
from millrace.models.common.language_generation import MAX_TOKENS
from millrace.serving.openai_api.error_response import Refusal
from millrace.serving.openai_api.request_fields import (
    IGNORED,
    MOST_PROMPTS,
    OF_CHATS,
    OF_COMPLETIONS,
    ChatFields,
    Common,
    CompletionFields,
    Message,
)
from millrace.serving.triton.language.stream_request import Messages, Sampling


@dataclass(frozen=True)
class Ask:
    """A request, checked.

    Attributes:
        model: its name.
        prompts: the texts to go on with, or the messages of one chat.
        sampling: how each answer is made; `n` answers to each prompt.
        stream: whether the answers are sent as they come.
        include_usage: whether the end of a stream says how many tokens there were.
        is_chat: which of OpenAI's two forms the answer has.
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


Fields = TypeVar("Fields", bound=Common)
SHOWN = 60
ROLES = {"developer": "system"}
"""OpenAI's newer word for the same; templates know the older."""


def completion(body: bytes) -> Ask:
    """Read the body of a completion.

    Raises:
        Refusal: 400, with the field that is wrong.
    """
    fields = _read(CompletionFields, body, OF_COMPLETIONS)
    return _ask(fields, _prompts(fields.prompt), fields.max_tokens, is_chat=False)


def chat(body: bytes) -> Ask:
    """Read the body of a chat completion.

    Raises:
        Refusal: 400, with the field that is wrong.
    """
    fields = _read(ChatFields, body, OF_CHATS)
    newer, older = fields.max_completion_tokens, fields.max_tokens
    if None not in (newer, older) and newer != older:
        raise Refusal(
            400,
            f"'max_tokens' is {older} and 'max_completion_tokens' is {newer}: set one of them.",
            param="max_tokens",
        )
    messages = tuple(_message(message) for message in fields.messages)
    return _ask(fields, (messages,), newer if older is None else older, is_chat=True)


def _ask(
    fields: Common,
    prompts: tuple[str | Messages, ...],
    max_tokens: int | None,
    *,
    is_chat: bool,
) -> Ask:
    options = fields.stream_options
    if options is not None and not fields.stream:
        raise Refusal(
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
        # said to every backend: each has a default of its own
        max_tokens=max_tokens or MAX_TOKENS,
        min_tokens=fields.min_tokens,
        n=fields.n,
        ignore_eos=fields.ignore_eos,
    )
    include_usage = bool(options and options.include_usage)
    return Ask(fields.model, prompts, sampling, bool(fields.stream), include_usage, is_chat)


def _read(kind: type[Fields], body: bytes, neutral: Mapping[str, tuple[object, ...]]) -> Fields:
    try:
        values = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}.") from None
    if not isinstance(values, dict):
        raise Refusal(400, "The body must be a JSON object.")
    for name, allowed in neutral.items():
        if name in values and values.pop(name) not in allowed:
            raise _unsupported(name, allowed)
    values = {name: value for name, value in values.items() if name not in IGNORED}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, [*kind.model_fields, *neutral, *IGNORED]) from None


def _unsupported(name: str, allowed: tuple[object, ...]) -> Refusal:
    known = ", ".join(json.dumps(value) for value in allowed if value is not None)
    instead = f" with another value than {known}" if known else ""
    return Refusal(
        400,
        f"The parameter {name!r} is not supported{instead} by this server.",
        param=name,
        code="unsupported_parameter",
    )


def _invalid(error: ValidationError, known: list[str]) -> Refusal:
    # of a union every member has an error: the one that fits best goes deepest
    first = max(error.errors(include_url=False), key=lambda each: len(_place(each["loc"])))
    place = _place(first["loc"])
    param = _dotted(place)
    if first["type"] == "missing":
        message = f"Missing required parameter: {param!r}."
        return Refusal(400, message, param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        hint = nearest(str(place[-1]), known) if len(place) == 1 else None
        message = f"Unknown or unsupported parameter: {param!r}{f'; {hint}' if hint else '.'}"
        return Refusal(400, message, param=param, code="unknown_parameter")
    message = f"Invalid value for {param!r}: {first['msg']}, and it is {_shown(first['input'])}."
    return Refusal(400, message, param=param, code="invalid_value")


def _place(loc: tuple[int | str, ...]) -> list[int | str]:
    """Return keys and indices, without the names that pydantic gives the members of a union."""
    return [
        part
        for part in loc
        if isinstance(part, int) or (part not in ("str", "int", "float") and "[" not in part)
    ]


def _dotted(place: list[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _prompts(prompt: Any) -> tuple[str, ...]:
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if isinstance(prompts, list) and any(isinstance(each, int | list) for each in prompts):
        raise Refusal(
            400,
            "A prompt of token ids is not supported by this server; send its text.",
            param="prompt",
            code="unsupported_value",
        )
    texts = isinstance(prompts, list) and all(isinstance(each, str) for each in prompts)
    if not texts or not 1 <= len(prompts) <= MOST_PROMPTS:
        raise Refusal(
            400,
            f"Invalid value for 'prompt': it is {_shown(prompt)}, and must be a string or a list "
            f"of 1 to {MOST_PROMPTS} strings.",
            param="prompt",
            code="invalid_value",
        )
    return tuple(prompts)


def _message(message: Message) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    values = {"role": ROLES.get(message.role, message.role), "content": text}
    return values | ({"name": message.name} if message.name is not None else {})
