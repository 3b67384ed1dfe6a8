"""Prompts of a number of tokens, cut from texts of the model's own kind."""

from collections.abc import Sequence

STEP = 37
"""Characters between the beginnings of two prompts, prime so that a text is begun everywhere."""
FIRST_GUESS = 3.0
"""Characters of a token, before anything was measured."""


class PromptTexts:
    """Cuts prompts from texts, each with another beginning, so that no prompt is cached.

    Args:
        texts: texts such as the model answers; at least one that is not empty.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._text = "\n".join(texts)
        self._ratio = FIRST_GUESS

    def make(self, tokens: int, number: int) -> str:
        """Return a prompt of about so many tokens.

        Args:
            tokens: its tokens.
            number: which one; another number gives another beginning.
        """
        characters = max(1, round(tokens * self._ratio))
        begin = number * STEP % len(self._text)
        repeated = self._text * (1 + (begin + characters) // len(self._text))
        return repeated[begin : begin + characters]

    def learn(self, wanted: int, counted: float) -> None:
        """Correct the length of prompts.

        Args:
            wanted: tokens that were asked for.
            counted: mean tokens of the prompts that were made.
        """
        self._ratio *= wanted / max(counted, 1.0)
