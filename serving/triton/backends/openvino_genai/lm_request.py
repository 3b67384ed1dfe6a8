"""Read and check a request's inputs, and tokenize its prompt."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from language_generation import (  # type: ignore[import-not-found]
    MAX_TOKENS,
    ChatTemplate,
    TemplateRefusal,
    prompt_ids,
)
from lm_errors import invalid  # type: ignore[import-not-found]
from lm_sampling import describe, parse_json, parse_sampling  # type: ignore[import-not-found]
from lm_stream import GenerateRequest  # type: ignore[import-not-found]

TEXT, MESSAGES, SAMPLING = "text_input", "messages", "sampling_parameters"
STREAM, EXCLUDE = "stream", "exclude_input_in_output"
FLAGS = {
    "return_finish_reason": "finish_reason",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
"""The output that each boolean input requests."""
CHARACTERS = 64
"""Largest number of characters of a prompt, per token of the context; checked before tokenizing."""


@dataclass(frozen=True)
class Bounds:
    """The limits of a request.

    Attributes:
        context: the largest number of tokens of prompt and answer together.
        sequences: the largest number of answers to one prompt.
    """

    context: int
    sequences: int


def read_request(
    inputs: Mapping[str, Any], tokenizer: Any, template: ChatTemplate | None, bounds: Bounds
) -> GenerateRequest:
    """Check a request and tokenize its prompt.

    Args:
        inputs: arrays of one element, by input name.
        tokenizer: the engine's tokenizer.
        template: the model's chat template; None: the model has none.
        bounds: the limits of this model.

    Raises:
        RequestError: the request is not valid; the text says what is valid.
    """
    sampling = parse_sampling(read_text(inputs, SAMPLING), bounds.sequences)
    is_chat = MESSAGES in inputs
    if is_chat == (TEXT in inputs):
        raise invalid(
            f"a request must have either {TEXT} or {MESSAGES}, and this one has "
            f"{'both' if is_chat else 'neither'}"
        )
    prompt = render_chat(inputs, template) if is_chat else read_text(inputs, TEXT)
    if not prompt.isascii() and any("\ud800" <= each <= "\udfff" for each in prompt):
        raise invalid("the prompt has half of a surrogate pair, which is not valid UTF-8")
    if len(prompt) > CHARACTERS * bounds.context:
        raise invalid(
            f"the prompt has {len(prompt)} characters, and the model's context, "
            f"{bounds.context} tokens, takes at most {CHARACTERS * bounds.context}"
        )
    ids = prompt_ids(tokenizer, prompt, is_chat=is_chat)
    max_tokens = min(sampling.max_tokens or MAX_TOKENS, count_room(ids.shape[1], bounds.context))
    if sampling.min_tokens > max_tokens:
        raise invalid(
            f"min_tokens is {sampling.min_tokens}, and this answer has at most {max_tokens} tokens"
        )
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    return GenerateRequest(
        ids=ids,
        sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
        stream=read_flag(inputs, STREAM, default=False),
        echo="" if read_flag(inputs, EXCLUDE, default=True) else prompt,
    )


def count_room(tokens: int, context: int) -> int:
    """Return how many tokens of the context a prompt leaves for the answer.

    Raises:
        RequestError: the prompt has no tokens, or leaves none for the answer.
    """
    if tokens == 0:
        raise invalid("the prompt is empty, and must have at least one token")
    if tokens >= context:
        raise invalid(
            f"the prompt has {tokens} tokens, and the model's context, prompt and answer "
            f"together, is {context}"
        )
    return context - tokens


def requested_outputs(inputs: Mapping[str, Any]) -> set[str]:
    """Return the names of the outputs that a request asks for beside the text."""
    return {output for name, output in FLAGS.items() if read_flag(inputs, name, default=False)}


def render_chat(inputs: Mapping[str, Any], template: ChatTemplate | None) -> str:
    """Return the prompt that the model's chat template renders from the messages.

    Raises:
        RequestError: the messages are not valid, or the model has no chat template, or the template
            rejects the messages.
    """
    messages = parse_json(MESSAGES, read_text(inputs, MESSAGES))
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise invalid(
            f"{MESSAGES} is {describe(messages)}, and must be a list of objects, each with "
            'the strings "role" and "content"'
        )
    if template is None:
        raise invalid(f"the model has no chat template; send {TEXT}, not {MESSAGES}")
    try:
        return str(template.prompt(messages))
    except TemplateRefusal as error:
        reason = f": {error}" if str(error) else ""
        raise invalid(f"the model's chat template rejects these messages{reason}") from None


def read_text(inputs: Mapping[str, Any], name: str) -> str:
    """Return a text input; empty if it is missing.

    Raises:
        RequestError: the input is not UTF-8, or does not have exactly one element.
    """
    value = _read_element(inputs, name, b"")
    raw = value if isinstance(value, bytes) else str(value).encode()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid(
            f"{name} is not UTF-8: byte {raw[error.start]:#04x} at position {error.start}"
        ) from None


def read_flag(inputs: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a boolean input, or the default if it is missing."""
    return bool(_read_element(inputs, name, default))


def _read_element(inputs: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return the one element of an input, or the default if the input is missing.

    Raises:
        RequestError: the input has no element, or more than one.
    """
    if name not in inputs:
        return default
    if inputs[name].size != 1:
        raise invalid(f"{name} has {inputs[name].size} elements, and must have one")
    return inputs[name].ravel()[0]


def _is_message(message: Any) -> bool:
    is_object = isinstance(message, dict)
    return is_object and all(isinstance(message.get(key), str) for key in ("role", "content"))


def read_context(config: str, limit: int) -> int:
    """Return the largest number of tokens of prompt and answer together.

    Args:
        config: the text of a model's `config.json`.
        limit: the limit of the server; 0: use the model's own context.

    Raises:
        ValueError: `config.json` has no context, and the server has no limit.
    """
    values = json.loads(config)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
    own = next((int(values[name]) for name in names if values.get(name)), 0)
    known = [number for number in (own, limit) if number > 0]
    if not known:
        raise ValueError(
            f"the model's context is unknown, because config.json has none of {', '.join(names)}: "
            "set max_model_len"
        )
    return min(known)
