"""A latency at its bound is not accepted more often than the confidence says, whatever its law."""

import numpy as np
import pytest
from scipy.signal import lfilter

from bench.latency_laws import LAWS
from millrace.serving.profile.proof import (
    Schedule,
    correlation_length,
    max_over,
    mean_cluster,
    requests_needed,
    schedule_for,
)

RUNS = 1000


@pytest.mark.parametrize(("over", "requests"), [(0, 459), (1, 662), (2, 838), (3, 1001), (4, 1157)])
def test_the_requests_of_mlperf(over: int, requests: int) -> None:
    assert requests_needed(over, 0.99, 0.01) == requests
    assert max_over(requests, 0.99, 0.01) == over
    assert max_over(requests - 1, 0.99, 0.01) == over - 1


@pytest.mark.parametrize("schedule", [schedule_for(), Schedule((792, 2000))])
@pytest.mark.parametrize("name", LAWS)
def test_a_p99_over_the_bound_is_accepted_at_most_once_in_a_hundred(
    name: str, schedule: Schedule
) -> None:
    law, p99 = LAWS[name]
    drawn = np.random.default_rng(0)
    accepted = sum(
        any(
            verdict.is_proved
            for verdict in schedule.judge_all(law(drawn, schedule.looks[-1]), p99 / 1.05)
        )
        for _ in range(RUNS)
    )
    assert accepted <= RUNS * 0.01


def test_looking_after_every_request_would_accept_too_often() -> None:
    drawn, accepted = np.random.default_rng(1), 0
    looks = [requests_needed(over, 0.99, 0.01) for over in range(30)]
    for _ in range(RUNS):
        overs = np.cumsum(drawn.random(looks[-1]) < 0.01)
        accepted += any(overs[look - 1] <= over for over, look in enumerate(looks))
    assert accepted > RUNS * 0.015


def test_the_looks_share_the_error() -> None:
    schedule = schedule_for((2, 8))
    assert schedule.error_of_a_look == pytest.approx(0.005)
    assert schedule.looks == tuple(requests_needed(over, 0.99, 0.005) for over in (2, 8))


@pytest.mark.parametrize(("depends", "length"), [(0.0, 1.0), (0.9, 5.5)])
def test_dependent_requests_count_less(depends: float, length: float) -> None:
    drawn = np.random.default_rng(2)
    noise = lfilter([1], [1, -depends], drawn.normal(size=50_000))
    found = correlation_length(noise)
    assert found == pytest.approx(length, rel=0.3)


@pytest.mark.parametrize("size", [1, 4, 10])
def test_bursts_are_counted_by_their_mean_size(size: int) -> None:
    drawn, latencies = np.random.default_rng(3), np.zeros(10_000)
    starts = np.sort(drawn.choice(10_000 // size, 100, replace=False)) * size
    for start in starts:
        latencies[start : start + size] = 1.0 + drawn.random()
    found = np.mean([mean_cluster(latencies[at : at + 2000]) for at in range(0, 10_000, 2000)])
    assert found == pytest.approx(size, rel=0.4)


def test_that_none_is_over_is_proved_by_the_mean_burst() -> None:
    # of the 30 slowest of 2,000 requests 20 are one burst, so that many count as one for the number
    # that is over, though most bursts are of one request
    drawn = np.random.default_rng(4)
    latencies = drawn.random(2000)
    latencies[500:520] = 2.0 + drawn.random(20)
    latencies[drawn.choice(400, 10, replace=False) * 3 + 600] = 2.0 + drawn.random(10)
    schedule = Schedule((2000,))
    assert max_over(int(2000 / correlation_length(latencies)), 0.99, 0.01) == -1
    verdict = schedule.judge(latencies, 3.0)
    assert (verdict.over, verdict.allowed, verdict.is_proved) == (0, 0, True)
    assert 1 < verdict.correlation < 2000 / 459
    assert not schedule.judge(latencies, np.sort(latencies)[-2]).is_proved


def test_requests_without_an_answer_are_over() -> None:
    latencies = np.full(459, 0.001)
    assert Schedule((459,)).judge(latencies, 0.01).is_proved
    latencies[7] = np.inf
    verdict = Schedule((459,)).judge(latencies, 0.01)
    assert (verdict.over, verdict.allowed, verdict.is_proved) == (1, 0, False)


def test_too_few_requests_prove_nothing() -> None:
    verdict = Schedule((458,)).judge(np.zeros(458), 1.0)
    assert (verdict.allowed, verdict.is_proved) == (-1, False)


def test_a_run_ends_where_more_are_over_than_any_look_allows() -> None:
    schedule = schedule_for((2, 8))
    latencies = np.zeros(200)
    latencies[:8] = 2.0
    assert not schedule.is_hopeless(latencies, 1.0)
    latencies[8] = np.inf
    assert schedule.is_hopeless(latencies, 1.0)
