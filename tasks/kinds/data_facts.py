"""What is known of a pipeline's data before its job begins; the kinds plan by it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.models.common.errors import InputError
from millrace.models.data.schema import Column, TableSchema


@dataclass(frozen=True)
class DataFacts:
    """What is known of the data.

    Attributes:
        schema: the columns.
        categories: number of different values of each category, the target's classes included.
        rows: number of rows; None: not known.
        train_rows: number of rows of the train split; None: not known.
        row_bytes: mean bytes of a stored row; None: not known.
        source: where this is from, in words.
    """

    schema: TableSchema
    categories: Mapping[str, int]
    rows: int | None
    train_rows: int | None
    row_bytes: float | None
    source: str

    @property
    def outputs(self) -> int:
        """Numbers of an answer: one for each class, or one."""
        return self.categories.get(self.schema.target, 1)

    @property
    def raw_width(self) -> int:
        """Numbers of a row that a client sends."""
        return sum(column.width or 1 for column in self._features)

    @property
    def in_features(self) -> int:
        """Numbers of a row that the model reads: a category as one number for each value."""
        return sum(self.categories.get(c.name) or c.width or 1 for c in self._features)

    @property
    def has_text(self) -> bool:
        """Whether the model reads a text."""
        return any(column.type == "text" for column in self._features)

    @property
    def _features(self) -> list[Column]:
        features = set(self.schema.features)
        return [column for column in self.schema.columns if column.name in features]


ReadFacts = Callable[[], DataFacts | None]
"""Reads what is known of the data: a second for some sources, so only where it is asked for. None:
nothing is known."""


def require_facts(read_facts: ReadFacts) -> DataFacts:
    """Return the facts.

    Raises:
        InputError: nothing is known of the data.
    """
    facts = read_facts()
    if facts is None:
        raise InputError(
            "the columns of the data are not known yet, and the model's size depends on them",
            seen="a source that only a run reads, and no snapshot",
            hint="run the pipeline once with `millrace run`, or `millrace check --full`",
        )
    return facts
