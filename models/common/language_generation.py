"""How a prompt becomes a language model's input, and where its answer ends.

Golden answers, measurements, releases, the live server and batch jobs all use this file, so that
all of them treat prompts and answers alike. A text is tokenized without a chat template; the
tokenizer puts its special tokens before the text. A chat is first rendered by the model's chat
template, special tokens included. An answer ends at any end token that the model's
`generation_config.json` names, and does not show that token.

Triton's backend gets a copy of this file, so it imports nothing else of Millrace.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAX_TOKENS = 256
"""Largest number of tokens in an answer, unless the request sets it."""
TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"


def prompt_ids(tokenizer: Any, prompt: str, *, is_chat: bool) -> "npt.NDArray[np.int64]":
    """Return the token ids that the model reads, `[1, tokens]`.

    Args:
        tokenizer: tokenizer of OpenVINO GenAI.
        prompt: a text, or a chat as its template renders it.
        is_chat: whether the prompt is a rendered chat.
    """
    import numpy as np  # 15 MB, which a process that only reads pipeline files saves

    encoded = tokenizer.encode(prompt, add_special_tokens=not is_chat)
    return np.array(encoded.input_ids.data, np.int64)


def greedy_config(defaults: Any, max_tokens: int, *, ignore_eos: bool = False) -> Any:
    """Return OpenVINO GenAI's settings for one greedy answer; the caller may add to them.

    Args:
        defaults: the engine's default settings, which name the tokens that end an answer.
        max_tokens: largest number of tokens in the answer.
        ignore_eos: whether to continue past the tokens that end an answer.
    """
    config = type(defaults)()
    own = {defaults.eos_token_id} - {-1}
    config.eos_token_id = defaults.eos_token_id
    config.stop_token_ids = own if ignore_eos else set(ends_of(defaults))
    config.ignore_eos = ignore_eos
    config.max_new_tokens = max_tokens
    config.do_sample = False
    config.apply_chat_template = False  # otherwise a text is answered as if it were a chat
    return config


def ends_of(defaults: Any) -> frozenset[int]:
    """Return the ids of the tokens that end an answer, from the engine's default settings."""
    return frozenset(defaults.stop_token_ids | {defaults.eos_token_id} - {-1})


def ids_of(eos_token_id: int | Sequence[int] | None) -> frozenset[int]:
    """Return the token ids in an `eos_token_id`: none, one or several."""
    if eos_token_id is None:
        return frozenset()
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)


def shown_ids(ids: Sequence[int], ends: Collection[int]) -> Sequence[int]:
    """Return the tokens of an answer without the one that ended it.

    The tokenizer does not treat every end token as special, so the token's text would be shown.
    """
    return ids[:-1] if len(ids) and ids[-1] in ends else ids


class TemplateRefusal(ValueError):
    """A chat template rejects messages.

    The error's text is the message that the template raised. The text is empty if there was
    another cause.
    """


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model, rendered as transformers renders it.

    The engine's own renderer changes messages that it thinks a template does not support (for
    example with the role `tool`), so the prompt would differ from those of the model's training.

    Attributes:
        source: Jinja source.
        special: texts of the special tokens, by their names.
    """

    source: str
    special: Mapping[str, str] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the prompt for the next message of a chat.

        Raises:
            TemplateRefusal: the template rejects these messages.
        """
        from jinja2 import TemplateError

        plain = [{key: each for key, each in m.items() if each is not None} for m in messages]
        try:
            text = _compiled(self.source).render(
                messages=plain,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self.special,
            )
        except (TemplateError, TypeError, ValueError) as error:
            reason = str(error) if getattr(error, "is_of_the_template", False) else ""
            raise TemplateRefusal(reason) from None
        return str(text)


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """Return the chat template in a model's folder, or None if there is none."""
    config, own = folder / CONFIG, folder / TEMPLATE
    values = json.loads(config.read_text()) if config.is_file() else {}
    source = own.read_text() if own.is_file() else values.get("chat_template")
    if isinstance(source, list):  # several templates, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not source:
        return None
    named = {key: each for key, each in values.items() if key.endswith("_token") and each}
    more = values.get("extra_special_tokens")
    named |= more if isinstance(more, dict) else {}
    return ChatTemplate(source, {key: _token_text(each) for key, each in named.items()})


def _token_text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    """Compile a template in the environment of transformers' `render_jinja_template`."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Accepts the tags around an assistant's message, which render no text in a prompt."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        error = TemplateError(message)
        error.is_of_the_template = True  # type: ignore[attr-defined]
        raise error

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        """Write plain JSON; Jinja's own filter escapes it for HTML."""
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["namespace"] = _namespace_type()
    return environment.from_string(source)


def _namespace_type() -> type:
    """Return the type of `namespace` in a template; it refuses names that reach into Python."""
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class PlainNamespace(Namespace):
        """A namespace without names that begin with an underscore."""

        def __init__(*args: Any, **given: Any) -> None:
            for name in dict(*args[1:], **given):
                PlainNamespace.check(name)
            Namespace.__init__(*args, **given)

        def __setitem__(self, name: str, value: Any) -> None:
            PlainNamespace.check(name)
            Namespace.__setitem__(self, name, value)

        @staticmethod
        def check(name: object) -> None:
            if isinstance(name, str) and name.startswith("_"):
                raise SecurityError("a name in a namespace must not begin with an underscore")

    return PlainNamespace
