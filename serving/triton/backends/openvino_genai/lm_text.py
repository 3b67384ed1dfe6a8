"""Detokenize an answer incrementally, so that the joined parts equal the whole text.

A byte-level tokenizer may split a character between tokens, and other tokenizers decode a token
differently at the start of a text. So the tokens before the new ones are decoded twice, once
without and once with the new tokens; the difference is the new text (vLLM's
`detokenize_incrementally`). Text whose last character is incomplete is held back.
"""

from collections.abc import Sequence

BROKEN = "\N{REPLACEMENT CHARACTER}"
MAX_BROKEN = 3
"""Most bytes of an incomplete UTF-8 character, because a complete one has at most four."""


class Detokenizer:
    """Decodes the text of one answer while its tokens arrive."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._before = 0  # tokens before this index are not decoded again
        self._known = 0  # the tokens up to this index end with a whole character
        self._given = 0  # characters of later tokens that were returned already

    def add(self, ids: Sequence[int]) -> None:
        """Add tokens."""
        self.ids += ids

    def windows(self) -> tuple[list[int], list[int]]:
        """Return two lists of tokens to decode for `new_text`: without and with the new tokens."""
        return self.ids[self._before : self._known], self.ids[self._before :]

    def new_text(self, known: str, text: str, *, is_last: bool) -> str:
        """Return the new characters that later tokens cannot change.

        Args:
            known: the decoded first list of `windows`.
            text: the decoded second list.
            is_last: whether no tokens follow; then nothing is held back.
        """
        new = text[len(known) :]
        certain = len(new) if is_last else len(new) - count_broken(new)
        given = new[self._given : certain]
        self._given = max(self._given, certain)
        if new and certain == len(new):
            self._before, self._known, self._given = self._known, len(self.ids), 0
        return given


def count_broken(text: str) -> int:
    """Return how many characters at the end of a text may be an incomplete character."""
    return min(len(text) - len(text.rstrip(BROKEN)), MAX_BROKEN)


class StopFilter:
    """Cuts an answer at the first stop text, even if the stop text arrives in several parts.

    Args:
        stops: the stop texts; none is empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def filter(self, text: str, *, is_last: bool) -> str:
        """Return the text that can be sent; hold back the end if it may begin a stop text.

        Args:
            text: the next characters of the answer.
            is_last: whether no characters follow; then nothing is held back.
        """
        if self.found:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.found = bool(ends)
        cut = min(ends)[1] if ends else len(text) - (0 if is_last else self._count_held(text))
        self._held = "" if self.found else text[cut:]
        return text[:cut]

    def _count_held(self, text: str) -> int:
        """Return the length of the longest suffix of the text that is a prefix of a stop text."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        return next((len(e) for e in ends if any(s.startswith(e) for s in self._stops)), 0)
