"""The fields of a request's body, with their types and bounds.

Names and bounds are those of OpenAI's API reference (completions, chat completions); `top_k`,
`repetition_penalty`, `min_tokens` and `ignore_eos` are vLLM's. OpenAI's parameters that are not
supported here are listed below with their neutral values, which are accepted; all others are
refused.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_ANSWERS = 128
MAX_PROMPTS = 64
MAX_INT32 = 2**31 - 1
SEED_SPACE = 2**63

IGNORED = (
    *("user", "metadata", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
)
"""Accepted with any value: they change no answer."""

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
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class RequestFields(_Fields):
    """The fields of both kinds of request."""

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
