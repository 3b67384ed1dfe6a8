"""Labels that came back: how often a fall is seen that is none, and how soon one that is."""

import numpy as np
import pytest

from millrace.models.comparison.live_metric import Counted, find_fall, rmse_interval

MONTHS, DAYS, LABELS = 200, 30, 500


def alarms(chance, shares, labels=LABELS, certified=1000, share=0.9):
    """Return the days of a month, of those that are looked at, on which a fall is seen."""
    test = Counted(certified, int(chance.binomial(certified, share)))
    days, found = [], set()
    for number, now in enumerate(shares):
        days.append(Counted(labels, int(chance.binomial(labels, now))))
        if find_fall(test, days) is not None:
            found.add(number)
    return found


@pytest.mark.parametrize(("labels", "share"), [(30, 0.9), (500, 0.6), (500, 0.9), (500, 0.99)])
def test_a_month_without_a_change_has_few_alarms(labels, share):
    chance = np.random.default_rng(0)
    months = [alarms(chance, [share] * DAYS, labels, share=share) for _ in range(MONTHS)]
    assert sum(map(bool, months)) <= 0.05 * MONTHS


def test_a_fall_of_five_points_is_seen_within_two_days():
    chance = np.random.default_rng(1)
    months = [alarms(chance, [0.9] * 14 + [0.85] * 2) for _ in range(MONTHS)]
    assert sum(bool(days & {14, 15}) for days in months) >= 0.9 * MONTHS


def test_a_model_that_is_worse_from_the_first_day_is_seen():
    fall = find_fall(Counted(1000, 900), [Counted(500, 400)])
    assert fall is not None
    assert (fall.now, fall.before) == (0.8, 0.9)


@pytest.mark.parametrize(
    ("certified", "days"),
    [
        (Counted(0, 0), [Counted(10, 0)]),
        (Counted(10, 9), []),
        (Counted(10, 9), [Counted(0, 0)]),
        (Counted(10, 10), [Counted(10, 10)]),
        (Counted(1000, 500), [Counted(1000, 990)]),
    ],
)
def test_too_little_or_better_is_no_fall(certified, days):
    assert find_fall(certified, days) is None


def test_the_interval_of_an_rmse_holds_it_in_nineteen_of_twenty_samples():
    chance = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        low, high = rmse_interval(np.square(chance.normal(0, 3, 300)))
        held += low < 3 < high
    assert 930 <= held <= 970


def test_one_row_has_no_interval():
    assert rmse_interval(np.array([4.0])) == (None, None)
    assert rmse_interval(np.array([4.0, 4.0])) == (2.0, 2.0)
