"""The times of batches are found from what was sent and what Triton traced."""

from collections.abc import Sequence

import numpy as np
import pytest

from millrace.models.common.errors import WorkError
from millrace.serving.profile.batch_times import service_times
from millrace.serving.profile.measure import FEWEST_REQUESTS
from millrace.serving.profile.pauses import PARTS
from millrace.serving.triton.open_loop import SentLoad
from millrace.serving.triton.request_trace import Traced

Run = tuple[SentLoad, np.ndarray]
Times = Sequence[tuple[float, float, float]]
"""When each request came into the queue, and when its batch started and ended."""
MANY = 2 * FEWEST_REQUESTS


def sent(rows: Sequence[int], due: Sequence[float] = (), latency: float = 1.0) -> Run:
    """Return a run of requests, which are due at once unless it is said."""
    when = np.array(due or [0.0] * len(rows))
    return SentLoad(when, when, when + latency, {}, 0.0), np.array(rows, np.int64)


def traced(*runs: Times) -> Traced:
    queued, started, ended = np.array([each for run in runs for each in run]).T
    return Traced("m", queued, queued, started, ended, ended, ended)


def one_batch(many: int, start: float, seconds: float) -> Times:
    return [(start - 0.001, start, start + seconds)] * many


def level_of(gap: float, seconds: float, latency: float = 1.0) -> tuple[Run, Times]:
    """Return requests that each are a batch, which starts 2 ms after it came into the queue."""
    due = [gap * (number + 1) for number in range(MANY)]
    times = [(100 + at, 100.002 + at, 100.002 + at + seconds) for at in due]
    return sent([1] * MANY, due, latency), times


IDLE = (sent([1]), one_batch(1, 0.5, 0.010))
"""A batch of one row on an idle machine."""


def test_the_median_of_the_bursts_of_a_size_counts() -> None:
    runs = [
        (sent([1, 3]), one_batch(2, 10, 0.050)),
        (sent([4]), one_batch(1, 11, 0.020)),
        (sent([2, 2]), one_batch(2, 12, 0.030)),
        (sent([1]), one_batch(1, 13, 0.010)),
    ]
    loads, times = zip(*runs, strict=True)
    found = service_times(loads, traced(*times), len(runs))
    assert found.rows == (1, 4)
    assert found.seconds == pytest.approx((0.010, 0.030))
    assert found.levels == ()


def test_a_burst_that_became_two_batches_is_ignored() -> None:
    runs = [
        (sent([2, 2]), one_batch(2, 10, 0.020)),
        (sent([2, 2]), [*one_batch(1, 11, 9.0), *one_batch(1, 12, 9.0)]),
        (sent([4, 4]), [*one_batch(1, 30, 9.0), *one_batch(1, 30.5, 9.0)]),
    ]
    loads, times = zip(*runs, strict=True)
    found = service_times(loads, traced(*times), len(runs))
    assert found.rows == (4,)
    assert found.seconds == pytest.approx((0.020,))


def test_a_batch_ends_with_its_last_request() -> None:
    times = [(0.0, 0.1, 0.13), (0.0, 0.1, 0.15), (0.0, 0.1, 0.12)]
    found = service_times([sent([1, 1, 1])], traced(times), 1)
    assert found.seconds == pytest.approx((0.050,))


def test_a_level_has_what_was_measured_at_its_rate() -> None:
    load, times = level_of(0.1, 0.020, latency=0.025)
    found = service_times([IDLE[0], load], traced(IDLE[1], times), 1)
    (level,) = found.levels
    assert level.rate == pytest.approx(10)
    assert level.rows.tolist() == [1] * MANY
    # 20 ms in the batch, and 2 ms before it in which Triton could have started it
    assert level.factors == pytest.approx(2.2)
    assert level.busy.tolist() == [1] * MANY
    # 25 ms, of which 2 ms were in the queue and 20 ms in the batch
    assert level.overhead == pytest.approx(0.003)


@pytest.mark.parametrize(("seconds", "most"), [(0.09, 1), (0.15, 2), (0.25, 3)])
def test_instances_that_compute_when_a_batch_starts_are_busy(seconds: float, most: int) -> None:
    load, times = level_of(0.1, seconds)
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], times), 1).levels
    assert level.busy[:3].tolist() == [min(number, most) for number in (1, 2, 3)]
    assert set(level.busy[3:].tolist()) == {most}


@pytest.mark.parametrize(
    ("instances", "factors", "waited"),
    [(1, [2, 1.2, 1.2], [False, True, True]), (2, [2, 1.9, 1.2], [False, False, True])],
)
def test_a_batch_could_start_when_a_request_waits_and_an_instance_is_free(
    instances: int, factors: Sequence[float], waited: Sequence[bool]
) -> None:
    # All come at the same time. With one instance each waits for the one before it; with two, the
    # second could start at once, and the third when the first has ended.
    after = {
        1: [(0.0, 0.0, 0.020), (0.0, 0.022, 0.032), (0.0, 0.034, 0.044)],
        2: [(0.0, 0.0, 0.020), (0.0, 0.009, 0.019), (0.0, 0.021, 0.031)],
    }[instances]
    load = sent([1] * 3, [1.0, 2.0, 3.0])
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], after), 1, instances).levels
    assert level.factors == pytest.approx(factors)
    assert level.waited.tolist() == waited


def test_requests_that_join_a_batch_show_how_long_it_is_open() -> None:
    """Each batch could start at x.0 and starts at x.2: of two that come between, one joins it."""
    batches = [100.0, 100.2, 100.5], [101.0, 101.2, 101.5], [102.0, 102.2, 102.5]
    times: list[tuple[float, float, float]] = []
    for number, (could, start, end) in enumerate(batches):
        times += [(could, start, end), (could + 0.1, start, end)]
        if number < 2:  # too late for this one
            times += [(could + 0.15, *batches[number + 1][1:])]
    load = sent([1] * len(times), [0.1 * number for number in range(1, len(times) + 1)])
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], times), 1).levels
    assert level.rows.tolist() == [2, 3, 3]
    # the others have as many rows as any, so they may have been full
    assert level.opening[0] == pytest.approx(0.2 / 2)


@pytest.mark.parametrize(
    ("at_guard", "seconds"), [([9.0] * 3 + [0.024] * (MANY + 1), 0.002), ([0.024], 0.003)]
)
def test_the_last_requests_of_the_guard_are_those_that_were_sent(
    at_guard: Sequence[float], seconds: float
) -> None:
    load, times = level_of(0.1, 0.020, latency=0.025)  # 22 ms of them in queue and batch
    trace = traced(IDLE[1], times)
    found = service_times([IDLE[0], load], trace, 1, at_guard=np.array(at_guard))
    assert found.levels[0].at_guard == pytest.approx(seconds)


def test_a_request_of_which_the_guard_knows_no_time_has_the_clients() -> None:
    load, times = level_of(0.1, 0.020, latency=0.025)
    at_guard = np.full(MANY + 1, 0.024)
    at_guard[7] = np.nan
    trace = traced(IDLE[1], times)
    (level,) = service_times([IDLE[0], load], trace, 1, at_guard=at_guard).levels
    assert level.at_guard[6] == pytest.approx(0.003)
    assert level.at_guard[5] == pytest.approx(0.002)


def test_a_part_in_which_the_machine_paused_is_left_out() -> None:
    load, times = level_of(0.1, 0.020, latency=0.025)
    paused = slice(MANY // PARTS, MANY // PARTS + 10)
    load[0].ended[paused] += 0.5
    times[paused] = [(queued, start, end + 0.5) for queued, start, end in times[paused]]
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], times), 1).levels
    left = MANY - MANY // PARTS
    assert (len(level.overhead), len(level.rows)) == (left, left)
    assert level.factors.max() == pytest.approx(2.2)


def test_a_queue_that_grows_is_no_pause() -> None:
    load, times = level_of(0.1, 0.020)
    load[0].ended[:] = load[0].due + np.linspace(0.025, 9.0, MANY)
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], times), 1).levels
    assert len(level.overhead) == MANY


def test_a_short_batch_beside_a_long_one_is_not_busy_any_more() -> None:
    short = [(100.0 + at, 100.0 + at, 100.001 + at) for at in range(1, MANY)]
    times = [(100.0, 100.0, 100.0 + 2 * MANY), *short]
    load = sent([1] * MANY, [0.001, *map(float, range(1, MANY))])
    (level,) = service_times([IDLE[0], load], traced(IDLE[1], times), 1).levels
    assert level.busy.tolist() == [1] + [2] * (MANY - 1)


def test_requests_that_start_together_are_one_batch_with_the_rows_of_both() -> None:
    bursts = [IDLE[0], sent([4])], [IDLE[1], one_batch(1, 1.0, 0.040)]
    times = [
        (100.0 + number // 2, 100.0 + number // 2, 100.08 + number // 2) for number in range(MANY)
    ]
    load = sent([1, 3] * (MANY // 2), [0.5 * number for number in range(1, MANY + 1)])
    found = service_times([*bursts[0], load], traced(*bursts[1], times), 2)
    (level,) = found.levels
    assert level.rows.tolist() == [4] * (MANY // 2)
    assert level.factors == pytest.approx(2)
    assert len(level.overhead) == MANY
    assert level.rate == pytest.approx(2)


def test_single_requests_between_are_neither_bursts_nor_levels() -> None:
    first, last = level_of(0.1, 0.020), level_of(0.05, 0.030)
    runs = [IDLE, (sent([1]), one_batch(1, 50, 9.0)), first, last]
    loads, times = zip(*runs, strict=True)
    found = service_times(loads, traced(*times), 1)
    assert found.seconds == pytest.approx((0.010,))
    assert [level.rate for level in found.levels] == pytest.approx([10, 20])
    assert [level.factors[0] for level in found.levels] == pytest.approx([2.2, 3.2])


def test_the_last_requests_of_the_trace_are_those_that_were_sent() -> None:
    warm_up = [(0.0, 0.1 * number, 9.0 + number) for number in range(5)]
    found = service_times([IDLE[0]], traced(warm_up, IDLE[1]), 1)
    assert found.seconds == pytest.approx((0.010,))


@pytest.mark.parametrize(
    ("trace", "seen"),
    [(None, "0 requests"), (traced(one_batch(2, 1.0, 0.01)), "2 requests")],
)
def test_a_trace_without_all_requests_is_refused(trace: Traced | None, seen: str) -> None:
    with pytest.raises(WorkError, match="does not have all requests") as caught:
        service_times([sent([1]), sent([1, 1])], trace, 2)
    assert seen in str(caught.value)
