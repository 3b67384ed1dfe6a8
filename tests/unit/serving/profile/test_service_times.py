"""What is drawn from measured times is like what was measured."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from millrace.serving.profile.batch_level import OF_BATCHES, OF_REQUESTS, Level
from millrace.serving.profile.service_times import NEAR, ServiceTimes

MANY, OVERHEADS = 4000, 20_000
INSIDE = np.random.default_rng(3).random(OVERHEADS)


def level(
    rate: float,
    factors: Sequence[float] | np.ndarray,
    overhead: Sequence[float] | np.ndarray = (),
    rows: Sequence[float] = (),
    busy: Sequence[int] = (),
    inside: Sequence[float] | np.ndarray = (),
    waited: Sequence[bool] = (),
    opening: Sequence[float] = (),
) -> Level:
    many = len(factors)
    beside = np.array(overhead if len(overhead) else [0.001] * many, np.float64)
    return Level(
        rate,
        np.array(rows or [1] * many, np.float64),
        np.array(factors, np.float64),
        np.array(busy or [1] * many, np.int64),
        np.array(waited or [False] * many, np.bool_),
        np.array(opening or [0.0] * many, np.float64),
        np.array(inside if len(inside) else [0.002] * len(beside), np.float64),
        beside,
        beside / 2,
    )


def times(*levels: Level) -> ServiceTimes:
    return ServiceTimes((1.0, 8.0), (0.010, 0.024), levels)


TWO = times(level(100, [1.0] * 60, [0.001] * 9), level(300, [3.0] * 60, [0.003] * 9))


def draw(
    found: ServiceTimes, rate: float, rows: int = 1, busy: int = 1, waited: bool = False
) -> np.ndarray:
    service = found.service(found.blocks(rate, MANY, np.random.default_rng(0)))
    drawn = []
    for _ in range(MANY):
        service.opening()
        drawn.append(service.seconds(rows, busy, waited))
    return np.array(drawn)


def overhead(found: ServiceTimes, rate: float, inside: np.ndarray = INSIDE) -> np.ndarray:
    return found.blocks(rate, OVERHEADS, np.random.default_rng(2)).overhead(inside)


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.010), (2, 0.012), (4.5, 0.017), (8, 0.024), (16, 0.040)]
)
def test_an_idle_batch_is_on_the_line_between_measured_sizes_and_beyond(
    rows: float, seconds: float
) -> None:
    assert times().idle_seconds(rows) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.010), (1.5, 0.015), (3, 0.018), (4, 0.016), (8, 0.0160)]
)
def test_each_size_is_on_the_line_of_its_neighbours(rows: float, seconds: float) -> None:
    found = ServiceTimes((1.0, 2.0, 4.0, 10.0), (0.010, 0.020, 0.016, 0.016), ())
    assert found.idle_seconds(rows) == pytest.approx(seconds)


def test_a_larger_batch_never_takes_no_time() -> None:
    noisy = ServiceTimes((1.0, 2.0), (0.020, 0.010), ())
    assert noisy.idle_seconds(64) == pytest.approx(0.005)


def test_a_model_with_one_measured_size_has_one_time() -> None:
    assert ServiceTimes((4.0,), (0.010,), ()).idle_seconds(64) == 0.010


def test_service_at_a_measured_rate_is_spread_as_measured() -> None:
    factors = 2 * np.exp(0.4 * np.random.default_rng(1).normal(size=2000))
    found = draw(times(level(100, [1.0]), level(200, factors), level(400, [9.0])), 200) / 0.010
    for share in (0.1, 0.5, 0.9):
        assert np.quantile(found, share) == pytest.approx(np.quantile(factors, share), rel=0.05)


@pytest.mark.parametrize(
    ("rate", "factor"), [(1, 1), (100, 1), (150, 1.5), (200, 2), (300, 3), (900, 3)]
)
def test_service_between_two_rates_is_between_both(rate: float, factor: float) -> None:
    assert draw(TWO, rate, rows=4) == pytest.approx(0.016 * factor)


def test_the_spread_between_two_rates_is_of_both() -> None:
    steady, wild = level(100, [1.0] * 60), level(300, [0.5, 1.0, 1.5] * 40)
    found = draw(times(steady, wild), 150) / 0.010
    assert (found.round(9) == 1).mean() == pytest.approx(0.75 + 0.25 / 3, abs=0.05)


def test_a_batch_takes_as_long_as_those_of_similar_size() -> None:
    measured = level(100, [1.0] * 60 + [1.5] * 60, rows=[1] * 60 + [16] * 60)
    assert draw(times(measured), 100, rows=1) == pytest.approx(0.010)
    assert draw(times(measured), 100, rows=12) == pytest.approx(0.032 * 1.5)


def test_busy_instances_make_a_batch_as_slow_as_was_measured_with_so_many() -> None:
    measured = level(100, [1.0] * 60 + [2.0] * 60, busy=[1] * 60 + [2] * 60)
    assert draw(times(measured), 100, busy=1) == pytest.approx(0.010)
    assert draw(times(measured), 100, busy=2) == pytest.approx(0.020)


def test_a_number_of_busy_instances_that_was_rarely_seen_is_not_told_apart() -> None:
    measured = level(100, [1.0] * 60 + [2.0] * 9, busy=[1] * 60 + [2] * 9)
    assert measured.usual_factor(1, busy=2, waited=False) == 1


def test_a_batch_that_waited_takes_as_long_as_those_that_waited() -> None:
    measured = level(100, [1.0] * 60 + [1.2] * 60, waited=[False] * 60 + [True] * 60)
    assert draw(times(measured), 100, waited=False) == pytest.approx(0.010)
    assert draw(times(measured), 100, waited=True) == pytest.approx(0.012)


def test_batches_of_a_similar_size_count_more_than_those_that_waited_too() -> None:
    """No batch of 16 rows was seen that did not wait."""
    measured = level(
        100, [1.0] * 60 + [1.5] * 60, rows=[1] * 60 + [16] * 60, waited=[False] * 60 + [True] * 60
    )
    assert measured.usual_factor(16, busy=1, waited=False) == 1.5


def test_a_batch_that_is_long_open_is_long() -> None:
    """Both are of the same measured batch."""
    measured = level(100, [1.0, 3.0] * 60, opening=[0.001, 0.003] * 60)
    service = times(measured).service(times(measured).blocks(100, MANY, np.random.default_rng(0)))
    drawn = np.array([(service.opening(), service.seconds(1, 1, False)) for _ in range(MANY)])
    assert drawn == pytest.approx(np.where(drawn[:, :1] < 0.002, [0.001, 0.010], [0.003, 0.030]))
    assert 0 < (drawn[:, 0] < 0.002).mean() < 1


@pytest.mark.parametrize(
    ("rate", "seconds"),
    [(1, 0.001), (100, 0.001), (150, 0.001 * 3**0.25), (200, 0.001 * 3**0.5), (900, 0.003)],
)
def test_overhead_is_between_that_of_the_rates_beside(rate: float, seconds: float) -> None:
    found = overhead(TWO, rate)
    assert len(found) == OVERHEADS
    assert found == pytest.approx(seconds)


def test_each_quantile_of_overhead_is_between_those_beside() -> None:
    """No request is as slow as those of a rate that the server cannot take."""
    mixed = np.random.default_rng(5).permutation(500) / 499
    steady = level(100, [1.0], overhead=0.001 + 0.003 * mixed)
    overload = level(300, [1.0], overhead=0.020 + 0.140 * mixed)
    found = overhead(times(steady, overload), 110)
    for share, low, high in ((0.1, 0.0013, 0.034), (0.5, 0.0025, 0.09), (0.99, 0.00397, 0.1586)):
        assert np.quantile(found, share) == pytest.approx(low**0.95 * high**0.05, rel=0.05)


def test_batches_are_slow_for_some_time() -> None:
    slow = np.repeat([1.0, 3.0], 500)
    found = draw(times(level(100, slow)), 100) / 0.010
    assert (found < 2).mean() == pytest.approx(0.5, abs=0.15)
    assert np.count_nonzero(np.diff(found.round(6))) < MANY / 10


def test_requests_that_are_long_inside_are_long_outside_as_measured() -> None:
    inside = np.random.default_rng(6).permutation(1000) / 1000
    measured = times(level(100, [1.0], overhead=0.001 + 0.004 * inside, inside=inside))
    asked = np.random.default_rng(7).exponential(0.1, OVERHEADS)  # only the rank of them counts
    found = overhead(measured, 100, asked)
    ranks = np.argsort(np.argsort(asked)) / OVERHEADS
    assert found == pytest.approx(0.001 + 0.004 * ranks, abs=2 * 0.004 * NEAR)


def test_requests_whose_time_outside_does_not_depend_on_that_inside_are_spread_alike() -> None:
    drawn = np.random.default_rng(8)
    measured = times(level(100, [1.0], overhead=drawn.random(2000), inside=drawn.random(2000)))
    asked = drawn.random(OVERHEADS)
    assert abs(np.corrcoef(overhead(measured, 100, asked), asked)[0, 1]) < 0.1


def test_the_guard_does_not_see_what_the_client_needs() -> None:
    measured = times(level(100, [1.0], overhead=[0.004] * 50))
    assert overhead(measured, 100) == pytest.approx(0.004)
    assert overhead(measured.seen_by_guard(), 100) == pytest.approx(0.002)


def test_times_are_read_as_they_were_written() -> None:
    first = level(
        100, [1.0, 1.25], rows=[1, 3], busy=[1, 2], waited=[False, True], opening=[0.001, 0.002]
    )
    written = times(first, level(300, [3.0]))
    read = ServiceTimes.from_json(json.loads(json.dumps(written.to_json())))
    assert (read.rows, read.seconds) == (written.rows, written.seconds)
    assert len(read.levels) == 2
    for ours, theirs in zip(read.levels, written.levels, strict=True):
        assert ours.rate == theirs.rate
        for name in (*OF_BATCHES, *OF_REQUESTS):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            assert getattr(ours, name).dtype == getattr(theirs, name).dtype


GOOD = TWO.to_json()
LEVEL = GOOD["levels"][0]


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        "times",
        {**GOOD, "levels": None},
        {**GOOD, "levels": 5},
        {**GOOD, "levels": [5]},
        {**GOOD, "levels": [{}]},
        {**GOOD, "rows": None},
        {**GOOD, "seconds": 1.0},
        {key: value for key, value in GOOD.items() if key != "seconds"},
        {**GOOD, "levels": [{**LEVEL, "rate": "fast"}]},
        {**GOOD, "levels": [{**LEVEL, "rate": None}]},
        {**GOOD, "levels": [{**LEVEL, "factors": ["x"]}]},
        {**GOOD, "levels": [{**LEVEL, "busy": [{}]}]},
        {**GOOD, "levels": [{k: v for k, v in LEVEL.items() if k != "overhead"}]},
    ],
)
def test_what_are_no_measured_times_is_refused(values: Any) -> None:
    with pytest.raises(ValueError, match="no measured service times|could not convert"):
        ServiceTimes.from_json(values)


@pytest.mark.parametrize(
    "values",
    [
        {**GOOD, "levels": [{**LEVEL, "factors": LEVEL["factors"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "busy": LEVEL["busy"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "waited": LEVEL["waited"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "opening": LEVEL["opening"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "inside": LEVEL["inside"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "at_guard": LEVEL["at_guard"][1:]}]},
        {**GOOD, "levels": [{**LEVEL, "inside": [], "overhead": []}]},
        {**GOOD, "rows": [], "seconds": []},
        {**GOOD, "seconds": GOOD["seconds"][1:]},
    ],
)
def test_times_of_which_some_are_missing_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        ServiceTimes.from_json(values)
