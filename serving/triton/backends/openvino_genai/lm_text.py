"""Tokens to text, piece by piece, so that the pieces joined are the whole.

A tokenizer of bytes cuts characters in two, and others write a token differently at the start of a
text. So what is new is told by decoding with and without it behind the tokens before (vLLM's
`detokenize_incrementally`), and what may still become another character waits.
"""

from collections.abc import Sequence

BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_BROKEN = 3
"""Bytes of a character that is not whole: it has four at most."""


class Detokenizer:
    """The text of one answer, as its tokens come."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._before = 0  # tokens before this one are not decoded again
        self._known = 0  # those from there to here end with a whole character
        self._given = 0  # characters of the tokens after, which were given already

    def add(self, ids: Sequence[int]) -> None:
        """Take tokens."""
        self.ids += ids

    def windows(self) -> tuple[list[int], list[int]]:
        """Return what `take` wants decoded: the known tokens, and those with the new."""
        return self.ids[self._before : self._known], self.ids[self._before :]

    def take(self, known: str, text: str, *, is_last: bool) -> str:
        """Return the characters that are new and certain.

        Args:
            known: the first of `windows`, decoded.
            text: the second.
            is_last: no tokens follow, so nothing waits.
        """
        new = text[len(known) :]
        certain = len(new) if is_last else len(new) - broken_at_end(new)
        given = new[self._given : certain]
        self._given = max(self._given, certain)
        if new and certain == len(new):
            self._before, self._known, self._given = self._known, len(self.ids), 0
        return given


def broken_at_end(text: str) -> int:
    """Return how many characters at the end may be the beginning of another."""
    whole = len(text.rstrip(BROKEN))
    return min(len(text) - whole, MOST_BROKEN)


class Stops:
    """Finds texts that end an answer, wherever its pieces are cut: the first that is complete.

    Args:
        stops: the texts, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def take(self, text: str, *, is_last: bool) -> str:
        """Return what may be given of the answer: nothing that can be part of a stop.

        Args:
            text: the next characters of the answer.
            is_last: none follow, so nothing is held back.
        """
        if self.found:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        self.found = bool(ends)
        cut = min(ends)[1] if ends else len(text) - (0 if is_last else self._held_of(text))
        self._held = "" if self.found else text[cut:]
        return text[:cut]

    def _held_of(self, text: str) -> int:
        """Return the length of the longest end of the text that begins a stop."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        ends = (text[-length:] for length in range(min(longest, len(text)), 0, -1))
        return next((len(e) for e in ends if any(s.startswith(e) for s in self._stops)), 0)
