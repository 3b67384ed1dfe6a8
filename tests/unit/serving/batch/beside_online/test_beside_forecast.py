from collections.abc import Callable

import numpy as np
import pytest

from millrace.serving.batch.beside_online.beside_forecast import (
    LEAST_FREE,
    MEMORY_SECONDS,
    as_now,
    seconds_left_beside,
    shape_of,
)
from millrace.serving.batch.beside_online.online_watch import Moment
from millrace.serving.batch.monitoring.throughput import Sample, Work

CORES = 2


def worked(
    seconds: float, others: Callable[[float], float], speed: float = 50.0
) -> tuple[list[Sample], list[Moment]]:
    """Return what is seen of a job that does so much work per free core and second."""
    moments, samples, done = list[Moment](), list[Sample](), 0.0
    for second in range(1, int(seconds) + 1):
        load = others(second)
        is_paused = load < 0
        done += 0 if is_paused else speed * (CORES - load)
        moments.append(Moment(second, max(load, 0.0), is_paused))
        if second % 5 == 0:
            samples.append(Sample(second, Work(rows=int(done))))
    return samples, moments


def test_a_job_alone_is_as_fast_as_it_was() -> None:
    samples, moments = worked(60, lambda _: 0.0)
    assert seconds_left_beside(samples, moments, 12_000, CORES) == pytest.approx(60)


def test_the_load_of_now_goes_on() -> None:
    samples, moments = worked(60, lambda _: 1.0)
    assert seconds_left_beside(samples, moments, 6_000, CORES) == pytest.approx(60)


def test_pauses_go_on_as_they_were() -> None:
    samples, moments = worked(80, lambda second: -1.0 if second % 4 == 0 else 0.0)
    done = samples[-1].work.rows
    assert seconds_left_beside(samples, moments, 2 * done, CORES) == pytest.approx(80, rel=0.1)


@pytest.mark.parametrize("later", [0.0, 1.5])
def test_a_load_that_ended_or_grew_at_this_hour_yesterday_is_foreseen(later: float) -> None:
    """The load is 1 core for two hours, then another, as it was yesterday."""
    samples, moments = worked(7000, lambda _: 1.0)
    yesterday = np.full(1440, round(100 * later), np.int64)
    yesterday[:120] = 100
    shape = shape_of(yesterday, 7000)
    found = seconds_left_beside(samples, moments, samples[-1].work.rows + 720_000, CORES, shape)
    rate = 50 * (CORES - later)
    assert found == pytest.approx(720_000 / rate, rel=0.15)
    alike = seconds_left_beside(samples, moments, samples[-1].work.rows + 720_000, CORES)
    assert alike == pytest.approx(720_000 / 50)


def test_the_present_counts_at_first_and_yesterday_later() -> None:
    samples, moments = worked(60, lambda _: 1.0)
    rest = round(50 * MEMORY_SECONDS / 20)
    soon = seconds_left_beside(samples, moments, 3_000 + rest, CORES, lambda _: 0.0)
    assert soon == pytest.approx(rest / 50, rel=0.05)
    late = seconds_left_beside(samples, moments, 3_000 + 100 * rest, CORES, lambda _: 0.0)
    assert late == pytest.approx(100 * rest / 100, rel=0.2)


def test_without_requests_yesterday_the_load_of_now_goes_on() -> None:
    assert shape_of(np.zeros(1440, np.int64), 100) is as_now


def test_yesterday_goes_round() -> None:
    yesterday = np.arange(1440)
    assert shape_of(yesterday, 60)(1439 * 60) == 0.0
    assert shape_of(yesterday, 60)(60) == pytest.approx(2 / 0.5)


def test_a_machine_that_is_full_ends_the_job_at_some_time() -> None:
    samples, moments = worked(60, lambda _: 1.95)
    found = seconds_left_beside(samples, moments, 1_000_000, CORES, lambda _: 9.0)
    assert found is not None
    assert found < 1_000_000 / (50 * CORES * LEAST_FREE * LEAST_FREE)


@pytest.mark.parametrize("seconds", [0, 5])
def test_too_little_is_no_forecast(seconds: int) -> None:
    samples, moments = worked(seconds, lambda _: 0.0)
    assert seconds_left_beside([Sample(0.0, Work()), *samples], moments, 9_999, CORES) is None


def test_work_that_is_done_takes_no_time() -> None:
    samples, moments = worked(60, lambda _: 0.0)
    assert seconds_left_beside(samples, moments, 6_000, CORES) == 0.0
