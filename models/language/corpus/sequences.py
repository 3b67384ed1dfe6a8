"""Packed sequences of tokens, as training reads them.

A packed sequence is several chunks in a row. A chunk is a document, or a part of one that is longer
than the context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace.models.common.arrays import Array

Packed = tuple[Array, Sequence[int] | Array, Array | None]
"""Three values: `input_ids`, int32 `[tokens]`; the lengths of the chunks in order, whose sum is
`tokens`; and the loss mask, bool `[tokens]`, true for tokens that count (None if all count)."""


class Sequences(Protocol):
    """The packed sequences of one split; each worker gets a pickled copy of this object."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        ...

    def sequence(self, position: int) -> Packed:
        """Return the sequence at a position in the split, counted from 0."""
        ...


@dataclass(frozen=True)
class SequencesInMemory:
    """Packed sequences in memory.

    Attributes:
        rows: the sequences.
    """

    rows: tuple[Packed, ...]

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.rows)

    def sequence(self, position: int) -> Packed:
        """Return the sequence at a position, counted from 0."""
        return self.rows[position]
