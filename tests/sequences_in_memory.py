"""Packed sequences for tests that train without a token table."""

from dataclasses import dataclass

from millrace.models.language.corpus.sequences import Packed


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
