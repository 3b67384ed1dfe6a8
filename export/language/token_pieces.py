"""Token sequences to measure and to calibrate with, and how many of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError

PROMPT_LENGTHS = (8, 24, 48, 96)
"""Tokens of the prompts that are answered greedily, in turn."""


def prompt_lengths(context: int, new: int) -> tuple[int, ...]:
    """Return the lengths of prompts that leave room for `new` tokens in the context.

    Raises:
        InputError: none does.
    """
    room = context - new
    if room < 1:
        raise InputError(
            "the context has no room for a prompt", seen=f"{context} tokens", valid=f"> {new}"
        )
    return tuple(length for length in PROMPT_LENGTHS if length <= room) or (room,)


@dataclass(frozen=True)
class TokenPieces:
    """Pieces of text, one after the other.

    Attributes:
        input_ids: `[tokens]`, int64.
        lengths: `[pieces]`, int64: the tokens of each; their sum is that of `input_ids`.
        answer: `[tokens]`, bool: which tokens count in the loss; None for all.
    """

    input_ids: Array
    lengths: Array
    answer: Array | None = None

    def __post_init__(self) -> None:
        answers = len(self.input_ids) if self.answer is None else len(self.answer)
        if int(self.lengths.sum()) != len(self.input_ids) or answers != len(self.input_ids):
            raise InputError(
                "the token pieces do not fit together",
                seen=f"{len(self.input_ids)} tokens, lengths of {self.lengths.sum()}, "
                f"{answers} answers",
                valid="as many lengths in sum, and answers, as tokens",
            )

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Yield each piece of two tokens and more, `[n]`, and which of its tokens count.

        The first token is predicted by nothing, so the second array is `[n - 1]`, bool.
        """
        ends = np.cumsum(self.lengths)
        for end, length in zip(ends, self.lengths, strict=True):
            part = slice(int(end - length), int(end))
            if length > 1:
                counted = np.ones(int(length), bool) if self.answer is None else self.answer[part]
                yield self.input_ids[part], counted[1:]

    @property
    def counted(self) -> int:
        """Tokens that are predicted and count."""
        return sum(int(counted.sum()) for _, counted in self.pieces())

    def first(self, counted: int, context: int) -> "TokenPieces":
        """Return the first pieces, cut to the context, while no more tokens count than that."""
        ids: list[Array] = []
        answers: list[Array] = []
        for piece, counts in self.pieces():
            piece, counts = piece[:context], counts[: context - 1]
            counted -= int(counts.sum())
            if counted < 0:
                break
            ids.append(piece)
            answers.append(np.concatenate([[False], counts]))
        return TokenPieces(
            np.concatenate([np.empty(0, np.int64), *ids]),
            np.array([len(piece) for piece in ids], np.int64),
            np.concatenate([np.empty(0, bool), *answers]),
        )

    def prompts(self, count: int, lengths: Sequence[int]) -> list[Array]:
        """Return prompts, `[n]` each, cut from the text side by side.

        Args:
            count: how many; they come again where the text is too short for so many.
            lengths: of the prompts, in turn; a piece that is shorter is taken whole.

        Raises:
            InputError: there is no piece of two tokens.
        """
        pieces = [piece for piece, _ in self.pieces()]
        if not pieces:
            raise InputError("there is no text to cut prompts from", valid="pieces of two tokens")
        made: list[Array] = []
        start = 0
        while len(made) < count:
            before = len(made)
            for piece in pieces:
                length = min(lengths[len(made) % len(lengths)], len(piece))
                if start + length <= len(piece) and len(made) < count:
                    made.append(piece[start : start + length])
            start = 0 if len(made) == before else start + max(lengths)
        return made

    def write(self, path: Path) -> None:
        """Write an npz that `read` and the programs of `conversions` read."""
        answers = {} if self.answer is None else {"answer": self.answer}
        np.savez(path, input_ids=self.input_ids, lengths=self.lengths, **answers)

    @classmethod
    def read(cls, path: Path) -> "TokenPieces":
        """Read what `write` wrote."""
        with np.load(path, allow_pickle=False) as file:
            answer = file["answer"] if "answer" in file.files else None
            return cls(file["input_ids"], file["lengths"], answer)


FLOAT = 4


@dataclass(frozen=True)
class Held:
    """How much held-out text variants are measured on.

    Attributes:
        tokens: that count, at most.
        kept_bytes: of transformers' probabilities on disk while variants are measured; there are
            as many tokens as fit.
        prompts: continued greedily.
        new_tokens: of each answer.
    """

    tokens: int = 16_384
    kept_bytes: int = 2 * 2**30
    prompts: int = 64
    new_tokens: int = 32

    def of(self, pieces: TokenPieces, vocab_size: int, context: int) -> TokenPieces:
        """Return the text that is measured, cut to a context.

        Args:
            pieces: held-out text.
            vocab_size: tokens that a model chooses from.
            context: tokens that it sees at a time.
        """
        return pieces.first(min(self.tokens, self.kept_bytes // (FLOAT * vocab_size)), context)
