"""Token sequences for measurements and for calibration, and limits on their number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError

PROMPT_LENGTHS = (8, 24, 48, 96)
"""Lengths in tokens of the prompts to continue greedily, used in turn."""


def prompt_lengths(context: int, new: int) -> tuple[int, ...]:
    """Return the lengths of prompts that leave room for `new` tokens in the context.

    Args:
        context: the model's context length in tokens.
        new: number of tokens to generate.

    Raises:
        InputError: the context has no room for a prompt.
    """
    room = context - new
    if room < 1:
        raise InputError(
            "the model's context has no room for a prompt and its continuation",
            seen=f"a context of {context} tokens",
            valid=f"a context of more than {new} tokens",
        )
    return tuple(length for length in PROMPT_LENGTHS if length <= room) or (room,)


@dataclass(frozen=True)
class TokenPieces:
    """Tokens of several chunks, concatenated.

    A document longer than the context is split into several chunks. Any other document is one
    chunk.

    Attributes:
        input_ids: int64 `[tokens]`.
        lengths: int64 `[chunks]`, tokens of each chunk; their sum is `tokens`.
        answer: bool `[tokens]`, true for tokens that count in the loss; None if all count.
    """

    input_ids: Array
    lengths: Array
    answer: Array | None = None

    def __post_init__(self) -> None:
        answers = len(self.input_ids) if self.answer is None else len(self.answer)
        if int(self.lengths.sum()) != len(self.input_ids) or answers != len(self.input_ids):
            raise InputError(
                "the arrays of TokenPieces do not fit together",
                seen=f"{len(self.input_ids)} tokens, lengths with a sum of {self.lengths.sum()}, "
                f"{answers} values of the loss mask",
                valid="lengths that sum to the number of tokens, and one mask value per token",
            )

    def pieces(self) -> Iterator[tuple[Array, Array]]:
        """Yield each chunk of two tokens or more, `[n]`, and its loss mask, bool `[n - 1]`.

        The loss mask starts at the second token, because the first token is never predicted.
        """
        ends = np.cumsum(self.lengths)
        for end, length in zip(ends, self.lengths, strict=True):
            part = slice(int(end - length), int(end))
            if length > 1:
                counted = np.ones(int(length), bool) if self.answer is None else self.answer[part]
                yield self.input_ids[part], counted[1:]

    @property
    def counted(self) -> int:
        """Number of tokens that are predicted and count in the loss."""
        return sum(int(counted.sum()) for _, counted in self.pieces())

    def first(self, counted: int, context: int) -> "TokenPieces":
        """Return the first chunks, each cut to the context, up to a number of tokens.

        Args:
            counted: largest number of tokens that count in the loss.
            context: largest number of tokens of a chunk.
        """
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
        """Return prompts, `[n]` each, cut from the text without overlap.

        Args:
            count: number of prompts; they repeat if the text is too short.
            lengths: lengths of the prompts, used in turn. If a chunk is shorter, the prompt is the
                entire chunk.

        Raises:
            InputError: there is no chunk of two tokens or more.
        """
        pieces = [piece for piece, _ in self.pieces()]
        if not pieces:
            raise InputError(
                "there is no text to cut prompts from", valid="a document of two tokens or more"
            )
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
        """Write an npz file for `read` and for the programs in `conversions`."""
        answers = {} if self.answer is None else {"answer": self.answer}
        np.savez(path, input_ids=self.input_ids, lengths=self.lengths, **answers)

    @classmethod
    def read(cls, path: Path) -> "TokenPieces":
        """Read an npz file of `write`."""
        with np.load(path, allow_pickle=False) as file:
            answer = file["answer"] if "answer" in file.files else None
            return cls(file["input_ids"], file["lengths"], answer)


FLOAT = 4


@dataclass(frozen=True)
class MeasuredText:
    """How much held-out text the variants are measured on.

    Attributes:
        tokens: largest number of tokens that count in the loss.
        kept_bytes: largest size on disk of transformers' log-probabilities. This size limits the
            number of tokens too.
        prompts: number of prompts to continue greedily.
        new_tokens: tokens of each continuation.
    """

    tokens: int = 16_384
    kept_bytes: int = 2 * 2**30
    prompts: int = 64
    new_tokens: int = 32

    def of(self, pieces: TokenPieces, vocab_size: int, context: int) -> TokenPieces:
        """Return the part of the held-out text to measure, with chunks cut to the context.

        Args:
            pieces: the held-out text.
            vocab_size: the model's vocabulary size.
            context: the model's context length in tokens.
        """
        return pieces.first(min(self.tokens, self.kept_bytes // (FLOAT * vocab_size)), context)


def speed_lengths(room: int) -> tuple[int, int]:
    """Return the numbers of tokens of a timed prompt and its continuation that fit a context.

    Raises:
        WorkError: the context is too short for both.
    """
    prompt, new = min(64, room // 2), min(64, room - room // 2)
    if prompt < 1 or new < 2:
        raise WorkError(
            "the model's context is too short to time a prompt and its continuation",
            seen=f"a context of {room} tokens",
        )
    return prompt, new
