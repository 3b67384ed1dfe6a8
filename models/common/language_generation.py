"""What a language model reads of a prompt, and where its answer ends: the same for all who ask.

Golden answers, measurements, releases, the live server and batch jobs take it from here, so that
they cannot differ. A text is read as it is, with the special tokens that the tokenizer begins a
text with, and no template is put around it. A chat is what its template writes, which has those
tokens already. An answer ends at each of the tokens that the model's `generation_config.json`
names, and shows none of them.

Triton's backend has a copy of this file and imports nothing else of Millrace's: so must this.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_TOKENS = 256
"""Of an answer, where a request does not say."""
TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"


def prompt_ids(tokenizer: Any, prompt: str, *, is_chat: bool) -> npt.NDArray[np.int64]:
    """Return what the model reads, `[1, tokens]`.

    Args:
        tokenizer: OpenVINO GenAI's.
        prompt: a text, or what the template made of a chat.
        is_chat: which of the two it is.
    """
    found = tokenizer.encode(prompt, add_special_tokens=not is_chat)
    return np.array(found.input_ids.data, np.int64)


def greedy_config(defaults: Any, max_tokens: int, *, ignore_eos: bool = False) -> Any:
    """Return OpenVINO GenAI's settings of one greedy answer, for a caller to add to.

    Args:
        defaults: the engine's own, which knows the tokens that end an answer.
        max_tokens: of the answer.
        ignore_eos: go on past those tokens.
    """
    config = type(defaults)()
    own = {defaults.eos_token_id} - {-1}
    config.eos_token_id = defaults.eos_token_id
    config.stop_token_ids = own if ignore_eos else set(ends_of(defaults))
    config.ignore_eos = ignore_eos
    config.max_new_tokens = max_tokens
    config.do_sample = False
    config.apply_chat_template = False  # else a text is answered as if it were a chat
    return config


def ends_of(defaults: Any) -> frozenset[int]:
    """Return the tokens that end an answer, by the engine's own settings."""
    return frozenset(defaults.stop_token_ids | {defaults.eos_token_id} - {-1})


def ids_of(eos_token_id: int | Sequence[int] | None) -> frozenset[int]:
    """Return the tokens that an `eos_token_id` stands for: none, one or several."""
    if eos_token_id is None:
        return frozenset()
    return frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id)


def shown_ids(ids: Sequence[int], ends: Collection[int]) -> Sequence[int]:
    """Return the tokens of an answer without the one that ended it.

    Not every such token is special to the tokenizer, so its text would be shown.
    """
    return ids[:-1] if len(ids) and ids[-1] in ends else ids


class TemplateRefusal(ValueError):
    """A chat template does not take some messages; its text is the template's own, or empty."""


@dataclass(frozen=True)
class ChatTemplate:
    """The chat template of a model, which renders as transformers does.

    The engine has a renderer of its own, which changes messages that it thinks a template cannot
    take (the role `tool`, for one), so that a model would be asked otherwise than it was trained.

    Attributes:
        source: in Jinja.
        special: the texts of the special tokens, by their names.
    """

    source: str
    special: Mapping[str, str] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that asks the model for the next message.

        Raises:
            TemplateRefusal: the template does not take these messages.
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
            told = str(error) if getattr(error, "is_of_the_template", False) else ""
            raise TemplateRefusal(told) from None
        return str(text)


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """Return the template of a model's folder, or None where there is none."""
    config, own = folder / CONFIG, folder / TEMPLATE
    values = json.loads(config.read_text()) if config.is_file() else {}
    source = own.read_text() if own.is_file() else values.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not source:
        return None
    named = {key: each for key, each in values.items() if key.endswith("_token") and each}
    more = values.get("extra_special_tokens")
    named |= more if isinstance(more, dict) else {}
    return ChatTemplate(source, {key: _text(each) for key, each in named.items()})


def _text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


@lru_cache(maxsize=8)
def _compiled(source: str) -> Any:
    """Compile a template in the environment of transformers' `render_jinja_template`."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Takes the marks around what an assistant says: in a prompt they write nothing."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(words: str) -> None:
        error = TemplateError(words)
        error.is_of_the_template = True  # type: ignore[attr-defined]
        raise error

    def to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
        """Write JSON as it is, where Jinja's own filter would write it for HTML."""
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["namespace"] = _namespace_type()
    return environment.from_string(source)


def _namespace_type() -> type:
    """Return what a template's `namespace` makes: no name in it reaches Python's own."""
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class PlainNamespace(Namespace):
        """Holds no name by which a template could reach Python."""

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
                raise SecurityError("a namespace holds no name that begins with an underscore")

    return PlainNamespace
