"""Recorded requests are made ready for the event model, and summed up for a person."""

import numpy as np
import pytest

from millrace.serving.guard.arrivals_table import UNKNOWN, RecordedArrivals
from millrace.serving.profile.expectation import estimate_rows, expect, prepare
from millrace.serving.profile.search import BatchConfiguration, Setup
from tests.unit.serving.profile.test_replay import ALONE, NOON, TIMES, evenly


def recorded(times: np.ndarray, **columns: object) -> RecordedArrivals:
    many = len(times)
    values = {"rows": 1, "sizes": 100, "seconds": 0.02, "statuses": 0, "is_grpc": True} | columns
    arrays = {name: np.broadcast_to(np.array(each), many) for name, each in values.items()}
    return RecordedArrivals(times, **arrays)


def test_a_burst_is_missed_and_its_minute_named() -> None:
    found = prepare(recorded(evenly(50, 120, 50).times), bytes_per_row=16)
    assert found.requests == 13_200
    assert found.hours == pytest.approx(0.05, rel=0.01)
    assert (found.peak, found.peak_rate) == (NOON + 60, 120)
    assert found.measured_p99_ms == pytest.approx(20)
    expected = expect(found, ALONE, TIMES, bound_ms=500, cores=2)
    assert expected.missed_minutes == 2
    assert expected.first_missed == NOON + 60
    assert expected.verdict == "would have missed its goal for 2 min, first at 12:01 UTC"
    assert expected.p99_ms == pytest.approx(12_000, rel=0.02)


def test_the_share_of_the_cores_and_the_time_of_a_request() -> None:
    found = prepare(recorded(evenly(50, 80).times), bytes_per_row=16)
    expected = expect(found, ALONE, TIMES, bound_ms=500, cores=2)
    assert expected.peak_share == pytest.approx(80 * 0.010 / 2, rel=0.01)
    assert expected.share == pytest.approx(65 * 0.010 / 2, rel=0.01)
    assert expected.machine_seconds == pytest.approx(0.005)
    two = BatchConfiguration(Setup(1, 2), 1)
    assert expect(found, two, TIMES, 500, 2).peak_share == pytest.approx(0.8, rel=0.01)


def test_requests_that_were_wrong_are_left_out_and_unanswered_ones_are_not() -> None:
    statuses = np.array([0, 3, UNKNOWN, 14])
    found = prepare(recorded(NOON + np.arange(4.0), statuses=statuses), bytes_per_row=16)
    assert (found.arrivals.times - NOON).tolist() == [0, 2, 3]
    statuses = np.array([200, 400, 503, 404])
    by_http = recorded(NOON + np.arange(4.0), statuses=statuses, is_grpc=False)
    assert (prepare(by_http, 16).arrivals.times - NOON).tolist() == [0, 2]
    nothing = prepare(recorded(NOON + np.arange(2.0), statuses=3), bytes_per_row=16)
    assert nothing.requests == 0
    assert prepare(recorded(np.zeros(0)), bytes_per_row=16).requests == 0


def test_without_an_answer_nothing_is_measured() -> None:
    found = prepare(recorded(NOON + np.arange(2.0), seconds=np.nan), bytes_per_row=16)
    assert found.measured_p99_ms is None


def test_rows_that_are_not_known_are_estimated_by_protocol() -> None:
    rows, sizes = np.array([0, 2, 0, 0]), np.array([400, 200, 640, 8])
    is_grpc = np.array([True, True, False, False])
    found = recorded(NOON + np.arange(4.0), rows=rows, sizes=sizes, is_grpc=is_grpc)
    assert estimate_rows(found, bytes_per_row=16).tolist() == [4, 2, 40, 1]
    assert prepare(found, 16).estimated == 0.75


def test_of_too_many_requests_the_busiest_minutes_are_replayed() -> None:
    found = prepare(recorded(evenly(50, 90, 10, 80).times), bytes_per_row=16, most=11_000)
    assert found.left_out == 60 * 60
    assert found.requests == 230 * 60
    minutes = set(((found.arrivals.times - NOON) // 60).tolist())
    assert minutes == {1, 3}
    assert not expect(found, ALONE, TIMES, bound_ms=500, cores=2).missed_minutes


def test_requests_that_are_too_large_are_counted() -> None:
    found = prepare(recorded(NOON + np.arange(4.0), rows=np.array([1, 9, 8, 16])), 16)
    eight = BatchConfiguration(Setup(1, 1), 8)
    assert expect(found, eight, TIMES, bound_ms=500, cores=2).too_large == 2
