"""Packed sequences of tokens, as training reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.models.common.arrays import Array

Packed = tuple[Array, Sequence[int] | Array, Array | None]
"""`input_ids` int32 `[tokens]`; the lengths of its pieces, in order, whose sum is `tokens`; which
tokens count in the loss, bool `[tokens]`, None for all."""


class Sequences(Protocol):
    """The packed sequences of one split; a worker gets it pickled."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def sequence(self, position: int) -> Packed:
        """Return one, by its place in the split, from 0."""
        ...


@dataclass(frozen=True)
class SequencesInMemory:
    """Sequences that are there already.

    Attributes:
        rows: the sequences.
    """

    rows: tuple[Packed, ...]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.rows)

    def sequence(self, position: int) -> Packed:
        """Return one, by its place, from 0."""
        return self.rows[position]
