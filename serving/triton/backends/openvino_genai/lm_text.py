"""Detokenize an answer piece by piece, so that the joined pieces are the whole text.

A byte-level tokenizer cuts characters in two, and other tokenizers write a token differently at the
start of a text. So new text is found by decoding the tokens before it, with and without the new
tokens (vLLM's `detokenize_incrementally`), and text that may still become another character is kept
back.
"""

from collections.abc import Sequence

BROKEN = "\N{REPLACEMENT CHARACTER}"
MAX_BROKEN = 3
"""Bytes of an incomplete character: a whole one has four at most."""


class Detokenizer:
    """The text of one answer, as its tokens come."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._before = 0  # tokens before this one are not decoded again
        self._known = 0  # the tokens from there to here end with a whole character
        self._given = 0  # characters of the tokens after, which were returned already

    def add(self, ids: Sequence[int]) -> None:
        """Add tokens."""
        self.ids += ids

    def windows(self) -> tuple[list[int], list[int]]:
        """Return the two lists of tokens to decode for `new_text`: known, and known with new."""
        return self.ids[self._before : self._known], self.ids[self._before :]

    def new_text(self, known: str, text: str, *, is_last: bool) -> str:
        """Return the new characters that are certain.

        Args:
            known: the first of `windows`, decoded.
            text: the second.
            is_last: whether no tokens follow, so that nothing is kept back.
        """
        new = text[len(known) :]
        certain = len(new) if is_last else len(new) - count_broken(new)
        given = new[self._given : certain]
        self._given = max(self._given, certain)
        if new and certain == len(new):
            self._before, self._known, self._given = self._known, len(self.ids), 0
        return given


def count_broken(text: str) -> int:
    """Return how many characters at the end may be the beginning of another character."""
    return min(len(text) - len(text.rstrip(BROKEN)), MAX_BROKEN)


class StopFilter:
    """Cuts an answer at the first complete stop text, however its pieces are split.

    Args:
        stops: the texts, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def filter(self, text: str, *, is_last: bool) -> str:
        """Return the text that can be sent: nothing that may be part of a stop text.

        Args:
            text: the next characters of the answer.
            is_last: whether none follow, so that nothing is kept back.
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
        """Return the length of the longest end of the text that begins a stop text."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        return next((len(e) for e in ends if any(s.startswith(e) for s in self._stops)), 0)
