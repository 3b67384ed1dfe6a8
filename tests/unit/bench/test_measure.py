import math

import pytest

from bench.measure import Beside, Rounds, Row, attempt, measure_in_turn, quantile, time_calls


def test_a_and_b_are_measured_alternately_and_each_comes_first_in_half_of_the_rounds() -> None:
    order: list[str] = []

    def measure(side: str, value: float) -> float:
        order.append(side)
        return value

    found = measure_in_turn(lambda: measure("a", 1), lambda: measure("b", 2), rounds=3)
    assert "".join(order) == "abbaabba"
    assert found == Rounds([1, 1, 1], [2, 2, 2])


def test_the_first_rounds_are_thrown_away() -> None:
    values = iter(range(100))
    found = measure_in_turn(lambda: next(values), lambda: next(values), rounds=1, dropped=2)
    assert found == Rounds([4], [5])


def test_a_ratio_is_the_median_over_rounds_and_not_the_ratio_of_medians() -> None:
    assert Rounds([1, 10, 100], [2, 5, 1]).ratio == 2


def test_a_difference_is_the_median_over_rounds() -> None:
    assert Rounds([3, 10, 5], [1, 1, 4]).difference == 2


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_a_quantile_is_interpolated(share: float, value: float) -> None:
    assert quantile([4, 1, 3, 2], share) == pytest.approx(value)


def test_a_quantile_of_one_value_is_that_value() -> None:
    assert quantile([7], 0.9) == 7


def test_a_timed_call_is_repeated_until_the_time_is_up() -> None:
    calls: list[int] = []
    times = time_calls(lambda: calls.append(1), 0.01)
    assert len(times) == len(calls) > 1


def test_a_row_that_fails_says_why() -> None:
    def measure() -> Row:
        raise RuntimeError("no Triton")

    row = attempt("P1", measure)
    assert (row.name, row.holds, row.error) == ("P1", False, "RuntimeError: no Triton")
    assert math.isnan(row.value)


@pytest.mark.parametrize(
    ("expected", "real", "is_close"),
    [
        ([11.4] * 3, [10, 10, 10], True),
        ([11.6] * 3, [10, 10, 10], False),
        ([13.0] * 3, [9, 10, 14], True),  # three real repeats differ by more
        ([13.0] * 5, [9, 10, 10, 10, 14], False),  # but not the middle three
        ([13.0] * 5, [9, 9, 10, 14, 15], True),
    ],
)
def test_what_is_expected_is_close_within_a_share_or_between_three_real_repeats(
    expected: list[float], real: list[float], is_close: bool
) -> None:
    assert Beside(expected, real).is_close(0.15) is is_close
