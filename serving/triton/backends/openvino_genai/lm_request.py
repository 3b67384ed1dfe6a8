"""A request's inputs to what it asks for."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from language_generation import MAX_TOKENS, prompt_ids  # type: ignore[import-not-found]
from lm_chat import Template  # type: ignore[import-not-found]
from lm_refused import invalid  # type: ignore[import-not-found]
from lm_sampling import described, parsed, sampling_of  # type: ignore[import-not-found]
from lm_stream import Asked  # type: ignore[import-not-found]

TEXT, MESSAGES, SAMPLING = "text_input", "messages", "sampling_parameters"
STREAM, EXCLUDE = "stream", "exclude_input_in_output"
FLAGS = {
    "return_finish_reason": "finish_reason",
    "return_num_input_tokens": "num_input_tokens",
    "return_num_output_tokens": "num_output_tokens",
}
"""The output that each asks for."""
CHARACTERS = 64
"""Of a prompt for each token of the context; no tokenizer is given more to read."""


@dataclass(frozen=True)
class Bounds:
    """What a request may ask for at most.

    Attributes:
        context: tokens of prompt and answer together.
        sequences: answers to one prompt.
    """

    context: int
    sequences: int


def asked_of(
    inputs: Mapping[str, Any], tokenizer: Any, template: Template | None, bounds: Bounds
) -> Asked:
    """Check a request and tokenize its prompt.

    Args:
        inputs: arrays by the input's name, each of one element.
        tokenizer: the engine's.
        template: the model's, of chats.
        bounds: of this model.

    Raises:
        Refused: something is not valid, with what would be.
    """
    sampling = sampling_of(text_of(inputs, SAMPLING), bounds.sequences)
    is_chat = MESSAGES in inputs
    if is_chat == (TEXT in inputs):
        raise invalid(
            f"a request has either {TEXT} or {MESSAGES}, and this has "
            f"{'both' if is_chat else 'neither'}"
        )
    prompt = chat(inputs, template) if is_chat else text_of(inputs, TEXT)
    if not prompt.isascii() and any("\ud800" <= each <= "\udfff" for each in prompt):
        raise invalid("the prompt has half of a surrogate pair, which no UTF-8 has")
    if len(prompt) > CHARACTERS * bounds.context:
        raise invalid(
            f"the prompt has {len(prompt)} characters, and the model's context, "
            f"{bounds.context} tokens, takes at most {CHARACTERS * bounds.context}"
        )
    ids = prompt_ids(tokenizer, prompt, is_chat=is_chat)
    room = room_for(ids.shape[1], bounds.context)
    wanted = sampling.max_tokens or MAX_TOKENS
    if sampling.min_tokens > min(wanted, room):
        raise invalid(
            f"min_tokens is {sampling.min_tokens}, and this answer has at most "
            f"{min(wanted, room)} tokens"
        )
    seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
    return Asked(
        ids=ids,
        sampling=replace(sampling, max_tokens=min(wanted, room), seed=seed),
        stream=flag_of(inputs, STREAM, default=False),
        echo="" if flag_of(inputs, EXCLUDE, default=True) else prompt,
    )


def room_for(tokens: int, context: int) -> int:
    """Return how many tokens an answer may have.

    Raises:
        Refused: the prompt has none, or leaves none to the answer.
    """
    if tokens == 0:
        raise invalid("the prompt is empty, and must have at least one token")
    if tokens >= context:
        raise invalid(
            f"the prompt has {tokens} tokens, and the model's context, prompt and answer "
            f"together, is {context}"
        )
    return context - tokens


def outputs_wanted(inputs: Mapping[str, Any]) -> set[str]:
    """Return the outputs beside the text that a request asks for."""
    return {output for name, output in FLAGS.items() if flag_of(inputs, name, default=False)}


def chat(inputs: Mapping[str, Any], template: Template | None) -> str:
    """Return the prompt that the model's chat template makes of the messages.

    Raises:
        Refused: they are no messages, or there is no template, or it does not take them.
    """
    messages = parsed(MESSAGES, text_of(inputs, MESSAGES))
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise invalid(
            f"{MESSAGES} is {described(messages)}, and must be a list of objects, each with "
            'the strings "role" and "content"'
        )
    if template is None:
        raise invalid(f"the model has no chat template; send {TEXT}, not {MESSAGES}")
    return str(template.prompt(messages))


def text_of(inputs: Mapping[str, Any], name: str) -> str:
    """Return a text, empty where there is none.

    Raises:
        Refused: it is not UTF-8, or not one text.
    """
    value = item_of(inputs, name, b"")
    raw = value if isinstance(value, bytes) else str(value).encode()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise invalid(
            f"{name} is not UTF-8: byte {raw[error.start]:#04x} at {error.start}"
        ) from None


def flag_of(inputs: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Return a flag, or the default where there is none."""
    return bool(item_of(inputs, name, default))


def item_of(inputs: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return the one element of an input, or the default.

    Raises:
        Refused: it has none, or more.
    """
    if name not in inputs:
        return default
    if inputs[name].size != 1:
        raise invalid(f"{name} has {inputs[name].size} elements, and must have one")
    return inputs[name].ravel()[0]


def _is_message(message: Any) -> bool:
    is_object = isinstance(message, dict)
    return is_object and all(isinstance(message.get(key), str) for key in ("role", "content"))


def context_of(config: str, limit: int) -> int:
    """Return the tokens of prompt and answer together.

    Args:
        config: a model's `config.json`.
        limit: what the server allows; 0 leaves it to the model.

    Raises:
        ValueError: neither says.
    """
    values = json.loads(config)
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
    own = next((int(values[name]) for name in names if values.get(name)), 0)
    known = [number for number in (own, limit) if number > 0]
    if not known:
        raise ValueError(f"config.json has none of {', '.join(names)}: set max_model_len")
    return min(known)
