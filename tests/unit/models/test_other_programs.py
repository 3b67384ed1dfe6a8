"""A measurement is made again while other programs take the cores."""

from collections.abc import Iterator
from types import TracebackType

import pytest

from millrace.models.common import other_programs
from millrace.models.common.other_programs import Others, measure_quietly


@pytest.mark.parametrize(
    ("shares", "kept"),
    [((0.1, 0.0, 0.0), (1, 0.1)), ((0.9, 0.1, 0.0), (2, 0.1)), ((0.9, 0.5, 0.7), (2, 0.5))],
)
def test_the_quietest_measurement_counts(
    monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...], kept: tuple[int, float]
) -> None:
    left: Iterator[float] = iter(shares)

    class Fake(Others):
        def __enter__(self) -> "Fake":
            return self

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            self.share = next(left)

    monkeypatch.setattr(other_programs, "Others", Fake)
    numbers = iter(range(1, 10))
    assert measure_quietly(lambda: next(numbers), cores=2) == kept


def test_a_long_measurement_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_programs, "MOST_SECONDS", -1.0)
    monkeypatch.setattr(other_programs, "QUIET", -1.0)
    numbers = iter(range(1, 10))
    assert measure_quietly(lambda: next(numbers), cores=2)[0] == 1
