"""One line of the benchmark table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A ratio or a difference that the benchmarks hold.

    Attributes:
        name: its short name, P1 to P11R.
        what: what is compared, in words, with the unit of the value.
        value: the median over the rounds; NaN where it could not be measured.
        goal: what the value should be, in words.
        holds: whether it is.
        samples: the measurements behind it, one for each round.
        error: why it could not be measured.
        details: what a reader may want to see below the table, in Markdown.
    """

    name: str
    what: str
    value: float
    goal: str
    holds: bool
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    error: str | None = None
    details: str = ""


def failed(name: str, error: str) -> Row:
    """Return the row of a benchmark that could not be measured."""
    return Row(name, "could not be measured", math.nan, "", holds=False, error=error)
