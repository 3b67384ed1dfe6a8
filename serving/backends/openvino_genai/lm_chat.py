"""A model's chat template, rendered as transformers does.

The engine has a renderer of its own, which changes messages that it thinks a template cannot take
(the role `tool`, for one), so that a model would be asked otherwise than it was trained.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lm_refused import invalid  # type: ignore[import-not-found]

OWN_FILE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class Unfit(TemplateError):
    """What a template says of messages that it does not take."""


class Template:
    """The template of one model.

    Args:
        source: in Jinja.
        special: the texts of the special tokens, by their names.
    """

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(source)
        self._special = dict(special)

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that asks the model for the next message.

        Raises:
            Refused: the template does not take these messages.
        """
        try:
            return str(
                self._template.render(
                    messages=messages, add_generation_prompt=True, **self._special
                )
            )
        except (TemplateError, TypeError, ValueError) as error:
            words = f": {error}" if isinstance(error, Unfit) else ""
            raise invalid(
                f"the model's chat template does not take these messages{words}"
            ) from None


def template_of(folder: Path) -> Template | None:
    """Return the template of a model's folder, or None where there is none."""
    config = folder / CONFIG
    values = json.loads(config.read_text()) if config.is_file() else {}
    own = folder / OWN_FILE
    source = own.read_text() if own.is_file() else values.get("chat_template")
    if isinstance(source, list):  # several, by name
        source = {each["name"]: each["template"] for each in source}.get("default")
    if not source:
        return None
    tokens = {name: values.get(name) for name in SPECIAL}
    return Template(source, {name: _text(token) for name, token in tokens.items() if token})


def _text(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _to_json(value: Any, indent: int | None = None) -> str:
    """Write JSON as it is, where Jinja's own filter would write it for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(words: str) -> None:
    raise Unfit(words)
