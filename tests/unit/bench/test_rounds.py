import pytest

from bench.rounds import difference, in_turn, quantile, ratio, timed


def test_a_and_b_are_measured_alternately_and_each_comes_first_in_half_of_the_rounds() -> None:
    order: list[str] = []

    def measure(side: str, value: float) -> float:
        order.append(side)
        return value

    a, b = in_turn(lambda: measure("a", 1), lambda: measure("b", 2), rounds=3)
    assert "".join(order) == "abbaabba"
    assert (a, b) == ([1, 1, 1], [2, 2, 2])


def test_the_first_rounds_are_thrown_away() -> None:
    values = iter(range(100))
    a, b = in_turn(lambda: next(values), lambda: next(values), rounds=1, dropped=2)
    assert (a, b) == ([4], [5])


def test_a_ratio_is_the_median_over_rounds_and_not_the_ratio_of_medians() -> None:
    assert ratio([1, 10, 100], [2, 5, 1]) == 2


def test_a_difference_is_the_median_over_rounds() -> None:
    assert difference([3, 10, 5], [1, 1, 4]) == 2


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_a_quantile_is_interpolated(share: float, value: float) -> None:
    assert quantile([4, 1, 3, 2], share) == pytest.approx(value)


def test_a_quantile_of_one_value_is_that_value() -> None:
    assert quantile([7], 0.9) == 7


def test_a_timed_call_is_repeated_until_the_time_is_up() -> None:
    calls: list[int] = []
    times = timed(lambda: calls.append(1), 0.01)
    assert len(times) == len(calls) > 1
