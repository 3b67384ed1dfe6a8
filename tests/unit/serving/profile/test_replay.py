"""A recorded day is judged minute by minute, with what still waits from the one before."""

import numpy as np
import pytest

from millrace.serving.profile.batch_level import Level
from millrace.serving.profile.replay import describe_missed, replay
from millrace.serving.profile.search import BatchConfiguration, Setup
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Arrivals

ONE = np.ones(1)
LEVEL = Level(1.0, ONE, ONE, ONE.astype(np.int64), ONE > 1, 0 * ONE, ONE, np.zeros(1), np.zeros(1))
TIMES = ServiceTimes((1.0,), (0.010,), (LEVEL,))
ALONE = BatchConfiguration(Setup(1, 1), 1)
NOON = 1_795_608_000.0  # 12:00 UTC


def evenly(*rates: float) -> Arrivals:
    """Return requests at one rate a minute, from noon on, evenly."""
    minutes = [
        NOON + 60 * number + np.arange(int(rate * 60)) / rate for number, rate in enumerate(rates)
    ]
    times = np.concatenate(minutes)
    return Arrivals(times, np.ones(len(times), np.int64))


def test_a_load_that_fits_misses_nothing() -> None:
    found = replay(evenly(50, 90, 50), ALONE, TIMES, bound_ms=20)
    assert [each.requests for each in found] == [3000, 5400, 3000]
    assert [each.p99_ms for each in found] == pytest.approx([10, 10, 10])
    assert describe_missed(found) == "would have met its goal all the time"


def test_a_burst_is_missed_and_so_is_the_minute_after_it() -> None:
    found = replay(evenly(50, 120, 50, 50), ALONE, TIMES, bound_ms=500)
    assert [each.is_missed for each in found] == [False, True, True, False]
    # 20 too many a second for a minute are 1,200 requests, which 100 a second take 12 s
    assert found[1].p99_ms == pytest.approx(12_000, rel=0.02)
    assert describe_missed(found) == "would have missed its goal for 2 min, first at 12:01 UTC"


def test_more_instances_take_the_burst() -> None:
    two = BatchConfiguration(Setup(2, 1), 1)
    found = replay(evenly(50, 120, 50), two, TIMES, bound_ms=500)
    assert not any(each.is_missed for each in found)


def test_what_waits_at_the_end_of_a_recording_is_answered_after_it() -> None:
    found = replay(evenly(150), ALONE, TIMES, bound_ms=500)
    assert found[0].is_missed
    assert found[0].p99_ms == pytest.approx(30_000, rel=0.02)


def test_a_few_requests_are_no_p99() -> None:
    arrivals = Arrivals(NOON + np.zeros(50), np.ones(50, np.int64))
    (found,) = replay(arrivals, ALONE, TIMES, bound_ms=20)
    assert found.p99_ms == pytest.approx(500)
    assert not found.is_missed


def test_a_minute_without_requests_is_in_the_middle() -> None:
    arrivals = evenly(50, 50, 50)
    kept = (arrivals.times - NOON) // 60 != 1
    found = replay(Arrivals(arrivals.times[kept], arrivals.rows[kept]), ALONE, TIMES, 20)
    assert [each.requests for each in found] == [3000, 0, 3000]
    assert not found[1].is_missed


def test_an_empty_recording_says_nothing() -> None:
    nothing = Arrivals(np.zeros(0), np.zeros(0, np.int64))
    assert replay(nothing, ALONE, TIMES, bound_ms=20) == []
