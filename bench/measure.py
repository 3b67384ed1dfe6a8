"""How the benchmarks measure: A and B in turn, and one row of the table from many measurements."""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LONGER = 2.0
"""The last quarter of the requests waits so many times as long as the first where a queue grows."""


@dataclass(frozen=True)
class Row:
    """A ratio or a difference with a goal: one line of the table.

    Attributes:
        name: its short name, P1 to P11R.
        what: what is compared, in words, with the unit of the value.
        value: the median over the rounds; NaN if it could not be measured.
        goal: the goal for the value, in words.
        holds: whether the value reaches the goal.
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


def failed_row(name: str, error: str) -> Row:
    """Return the row of a benchmark that could not be measured."""
    return Row(name, "could not be measured", math.nan, "", holds=False, error=error)


def attempt(name: str, measure: Callable[[], Row]) -> Row:
    """Measure a row, or return one that says why it could not be measured."""
    try:
        return measure()
    except Exception as error:  # reported in the table; the other rows go on
        return failed_row(name, f"{type(error).__name__}: {error}")


def measure_rows(
    measures: Mapping[str, Callable[[], Row]], wanted: Collection[str]
) -> Iterator[Row]:
    """Measure the rows that are wanted, one after the other."""
    for name, measure in measures.items():
        if name in wanted:
            yield attempt(name, measure)


def measure_in_folder(measure: Callable[[Path], Row]) -> Row:
    """Measure a row in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


@dataclass(frozen=True)
class Rounds:
    """Measurements of A and of B, round by round."""

    a: Sequence[float]
    b: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median of `a / b`, round by round."""
        return statistics.median(x / y for x, y in zip(self.a, self.b, strict=True))

    @property
    def difference(self) -> float:
        """The median of `a - b`, round by round."""
        return statistics.median(x - y for x, y in zip(self.a, self.b, strict=True))


@dataclass(frozen=True)
class Beside:
    """Expected and real milliseconds of one quantile at one load; one of each for each repeat."""

    expected: Sequence[float]
    real: Sequence[float]

    @property
    def ratio(self) -> float:
        """Expected ÷ real, the median over the repeats."""
        return statistics.median(a / b for a, b in zip(self.expected, self.real, strict=True))

    def is_close(self, most: float) -> bool:
        """Return whether they differ by so much at most, or no more than three real repeats do.

        Of more repeats the middle three count.
        """
        left_out = (len(self.real) - 3) // 2
        middle = sorted(self.real)[left_out : len(self.real) - left_out]
        is_within = middle[0] <= statistics.median(self.expected) <= middle[-1]
        return abs(self.ratio - 1) <= most or is_within


def measure_in_turn(
    a: Callable[[], float], b: Callable[[], float], rounds: int, dropped: int = 1
) -> Rounds:
    """Measure A and B alternately: A B, B A, A B, …, so that neither always comes second.

    Args:
        a: measures A once.
        b: measures B once.
        rounds: measurements of each to keep.
        dropped: rounds before them that are thrown away.
    """
    values_a, values_b = [], []
    for number in range(dropped + rounds):
        if number % 2:
            values_b.append(b())
            values_a.append(a())
        else:
            values_a.append(a())
            values_b.append(b())
    return Rounds(values_a[dropped:], values_b[dropped:])


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the values are, interpolated."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def time_calls(call: Callable[[], object], seconds: float) -> list[float]:
    """Call again and again for so long, and return the seconds of each call."""
    times: list[float] = []
    deadline = time.perf_counter() + seconds
    while (start := time.perf_counter()) < deadline:
        call()
        times.append(time.perf_counter() - start)
    return times


def off(ratio: float) -> float:
    """Return how far a ratio is from 1, either way."""
    return abs(math.log(ratio))


def queue_grows(waited: Sequence[float]) -> bool:
    """Return whether the last quarter of the requests waited much longer than the first.

    Args:
        waited: seconds, in the order of the requests; at least four.
    """
    quarter = len(waited) // 4
    return statistics.median(waited[-quarter:]) > LONGER * statistics.median(waited[:quarter])
