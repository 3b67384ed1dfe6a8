"""A model's chat template, whose refusals are a client's mistake."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from language_generation import (  # type: ignore[import-not-found]
    ChatTemplate,
    TemplateRefusal,
    chat_template_of,
)
from lm_refused import invalid  # type: ignore[import-not-found]


class Template:
    """The template of one model.

    Args:
        template: it.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template

    def prompt(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text that asks the model for the next message.

        Raises:
            Refused: the template does not take these messages.
        """
        try:
            return str(self._template.prompt(messages))
        except TemplateRefusal as error:
            words = f": {error}" if str(error) else ""
            raise invalid(
                f"the model's chat template does not take these messages{words}"
            ) from None


def template_of(folder: Path) -> Template | None:
    """Return the template of a model's folder, or None where there is none."""
    found = chat_template_of(folder)
    return None if found is None else Template(found)
