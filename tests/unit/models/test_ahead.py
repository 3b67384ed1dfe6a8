import threading
import time
from collections.abc import Iterator

import pytest

from millrace.models.common.ahead import map_ahead, read_ahead


def test_the_next_item_is_made_meanwhile() -> None:
    made: list[int] = []
    items = read_ahead(made.append(number) or number for number in range(3))  # type: ignore[func-returns-value]
    assert next(items) == 0
    while len(made) < 2:
        time.sleep(0.001)
    assert list(items) == [1, 2]


def test_what_fails_meanwhile_is_raised() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    items = read_ahead(failing())
    assert next(items) == 1
    with pytest.raises(OSError, match="gone"):
        next(items)


def test_results_come_in_order() -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.05 if number == 0 else 0)
        return number * number

    assert list(map_ahead(slow_first, range(6), 3)) == [0, 1, 4, 9, 16, 25]


def test_threads_work_at_the_same_time() -> None:
    together = threading.Barrier(2, timeout=30)
    assert len(list(map_ahead(lambda _: together.wait(), range(4), 2))) == 4


def test_few_items_are_made_before_their_results_are_taken() -> None:
    made: list[int] = []
    results = map_ahead(lambda number: number, (made.append(n) or n for n in range(50)), 2)  # type: ignore[func-returns-value]
    next(results)
    assert len(made) == 3
    assert list(results) == list(range(1, 50))


def test_a_failure_is_raised_in_its_place() -> None:
    results = map_ahead(lambda number: 1 // number, [1, 0, 1], 2)
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
