"""The model of continuous batching agrees with what can be computed by hand, and with M/D/1."""

import numpy as np
import pytest

from millrace.serving.profile.step_times import StepTimes
from millrace.serving.profile.stream_twin import (
    StreamArrivals,
    StreamOutcome,
    simulate_streams,
)

STEPS = StepTimes((1, 2, 4), (0.010, 0.012, 0.016), prompt_token=0.001)


def arrivals(times: list[float], prompt: int, answer: int) -> StreamArrivals:
    many = len(times)
    return StreamArrivals(np.array(times), np.full(many, prompt), np.full(many, answer))


def run(given: StreamArrivals, steps: StepTimes = STEPS, **limits: int) -> StreamOutcome:
    limits = {"max_num_seqs": 8, **limits}
    return simulate_streams(given, steps, np.random.default_rng(0), **limits)


def test_one_request_takes_its_prompt_and_then_a_step_for_each_token() -> None:
    found = run(arrivals([1.0], prompt=20, answer=5))
    assert found.ttft == pytest.approx([0.010 + 0.020])
    assert found.tpot == pytest.approx([0.010])
    assert found.queue == pytest.approx([0.0])


def test_a_long_prompt_is_computed_in_parts() -> None:
    found = run(arrivals([0.0], prompt=600, answer=1), batched_tokens=256)
    assert found.ttft == pytest.approx([3 * 0.010 + 0.600])
    assert np.isnan(found.tpot).all()


def test_a_prompt_makes_the_tokens_of_others_late() -> None:
    found = run(arrivals([0.0, 0.1], prompt=100, answer=11))
    # the first answer has one step with the other's prompt, and then steps of two
    assert found.tpot[0] == pytest.approx((0.110 + 9 * 0.012) / 10)


def test_what_a_request_adds_makes_the_tokens_of_others_late_too() -> None:
    steps = StepTimes((1, 2, 4), (0.010, 0.012, 0.016), prompt_token=0.001, request=0.005)
    found = run(arrivals([0.0, 0.1], prompt=100, answer=11), steps)
    assert found.ttft[0] == pytest.approx(0.115)
    assert found.tpot[0] == pytest.approx((0.115 + 9 * 0.012) / 10)
    in_parts = run(arrivals([0.0], prompt=600, answer=1), steps, batched_tokens=256)
    assert in_parts.ttft == pytest.approx([3 * 0.010 + 0.600 + 0.005])


def test_noise_lasts_for_an_answer() -> None:
    steps = StepTimes((1,), (0.010,), 0.0, noise=np.array([1.0, 2.0]))
    found = run(arrivals([float(each) for each in range(200)], prompt=1, answer=20), steps)
    assert np.isclose(found.tpot, 0.010).sum() == pytest.approx(100, abs=30)
    assert np.isclose(found.tpot, 0.020).sum() == pytest.approx(100, abs=30)


def test_further_requests_wait_for_a_place() -> None:
    found = run(arrivals([0.0, 0.0], prompt=10, answer=3), max_num_seqs=1)
    alone = 0.020 + 2 * 0.010
    assert found.queue == pytest.approx([0.0, alone])
    assert found.ttft == pytest.approx([0.020, alone + 0.020])


def test_requests_beyond_the_queue_are_refused() -> None:
    found = run(arrivals([0.0, 0.0, 0.0], 10, 3), max_num_seqs=1, max_queue_size=2)
    assert np.isfinite(found.ttft).tolist() == [True, True, False]


def test_more_answers_at_a_time_than_were_measured_take_longer_still() -> None:
    assert STEPS.step(8, 0) == pytest.approx(0.016 + 4 * 0.002)
    assert STEPS.step(3, 0) == pytest.approx(0.014)
    assert STEPS.step(0, 5) == pytest.approx(0.015)


def test_one_token_each_and_one_place_is_an_m_d_1_queue() -> None:
    drawn, many, share = np.random.default_rng(3), 40_000, 0.6
    steps = StepTimes((1,), (0.010,), prompt_token=0.0)
    times = np.cumsum(drawn.exponential(0.010 / share, many)).tolist()
    found = run(arrivals(times, prompt=1, answer=1), steps, max_num_seqs=1)
    waits = share * 0.010 / (2 * (1 - share))
    assert found.queue.mean() == pytest.approx(waits, rel=0.05)
    assert found.utilisation == pytest.approx(share, rel=0.03)
    assert not found.is_overload


def test_more_than_the_engine_can_do_is_overload() -> None:
    steps = StepTimes((1,), (0.010,), prompt_token=0.0)
    times = np.arange(2000) * 0.008
    assert run(arrivals(times.tolist(), 1, 1), steps, max_num_seqs=1).is_overload


def test_overhead_and_noise_are_drawn() -> None:
    steps = StepTimes((1,), (0.010,), 0.0, overhead=np.array([0.5]), noise=np.array([2.0]))
    found = run(arrivals([0.0], prompt=1, answer=3), steps)
    assert found.ttft == pytest.approx([0.520])
    assert found.tpot == pytest.approx([0.020])
