"""Which configurations are considered, and what the event model expects of them."""

from itertools import pairwise

import numpy as np
import pytest

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.batch_level import Level
from millrace.serving.profile.search import (
    BATCH_SIZES,
    BatchConfiguration,
    Demand,
    Setup,
    capacity,
    configurations,
    predict,
    setups,
)
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.twin import Batcher

ONE = Setup(1, 1)
SINGLE = BatchConfiguration(ONE, 1)


def constant(seconds: dict[int, float], overhead: float = 0.0) -> ServiceTimes:
    """Return times that are the same at every rate."""
    one = np.ones(1)
    beside = np.full(1, overhead)
    level = Level(1.0, one, one, one.astype(np.int64), one > 1, 0 * one, one, beside, beside)
    return ServiceTimes(tuple(map(float, seconds)), tuple(seconds.values()), (level,))


def demand(p99_ms: float, rows: object = 1, requests: int = 800) -> Demand:
    goal = SloSpec.model_validate({"rate": 1, "p99_ms": p99_ms, "rows": rows})
    return Demand.of(goal, requests)


SLOW = constant({1: 0.010})
CHEAP = constant({1: 0.010, 16: 0.025})
"""Times of a model whose batches are cheaper per row."""


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8, 12])
def test_setups_use_at_most_all_cores(cores: int) -> None:
    found = setups(cores)
    assert all(each.instances * each.threads <= cores for each in found)
    assert {ONE, Setup(1, cores), Setup(cores, 1)} <= set(found)
    assert len(set(found)) == len(found)


def test_a_batch_may_be_smaller_than_the_largest_request() -> None:
    found = configurations([ONE], 2, largest_request=64)
    assert {each.max_batch_size for each in found} == {64}
    small = next(each for each in found if each.batch_size == 2)
    assert small.settings["preferred_batch_size"] == 2
    assert small.batcher == Batcher(64, preferred=(2,))
    assert predict(small, SLOW, demand(100), 1000).is_overload


def test_setups_of_six_cores_have_powers_of_two_and_all_cores() -> None:
    assert setups(6) == [
        *(Setup(1, threads) for threads in (1, 2, 4, 6)),
        *(Setup(2, threads) for threads in (1, 2)),
        *(Setup(instances, 1) for instances in (4, 6)),
    ]


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, BATCH_SIZES), (6, (6, 8, 16, 32, 64)), (16, (16, 32, 64)), (100, (100,))],
)
def test_every_configuration_holds_the_largest_request(
    largest: int, sizes: tuple[int, ...]
) -> None:
    found = configurations(setups(2), largest)
    assert {each.max_batch_size for each in found} == set(sizes)
    assert {each.setup for each in found} == set(setups(2))
    assert len(set(found)) == len(found)


def test_a_batch_of_one_row_does_not_wait_for_more() -> None:
    found = configurations([ONE])
    assert [each.delay for each in found if each.max_batch_size == 1] == [0]
    assert {each.delay for each in found if each.max_batch_size == 4} == {0, 500, 2000, 5000}


@pytest.mark.parametrize("largest", [1, 16])
def test_a_model_that_is_not_batched_has_one_configuration_for_each_setup(largest: int) -> None:
    found = configurations(setups(4), largest, batches=False)
    assert found == [BatchConfiguration(setup, largest) for setup in setups(4)]


def test_a_configuration_is_said_in_words() -> None:
    assert str(BatchConfiguration(Setup(2, 1), 8, 500)) == (
        "2 instances, 1 thread, batches of 8, delay 500 µs"
    )
    assert str(SINGLE) == "1 instance, 1 thread, batches of 1"


def test_rows_are_drawn_as_often_as_the_goal_says() -> None:
    found = demand(10, {1: 6, 4: 3, 16: 1}, 5000)
    sizes, often = np.unique(found.rows, return_counts=True)
    assert sizes.tolist() == [1, 4, 16]
    assert often / len(found.rows) == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


def test_all_configurations_get_the_same_requests() -> None:
    first, second = (demand(10, {1: 1, 2: 1}) for _ in range(2))
    np.testing.assert_array_equal(first.gaps, second.gaps)
    np.testing.assert_array_equal(first.rows, second.rows)


@pytest.mark.parametrize("rate", [1.0, 50.0])
def test_requests_come_at_the_rate_from_independent_clients(rate: float) -> None:
    gaps = np.diff(demand(10, requests=5000).at(rate).times)
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.05)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.08)


def test_at_a_low_rate_a_request_takes_its_own_time_and_what_is_beside() -> None:
    found = predict(SINGLE, constant({1: 0.010}, overhead=0.002), demand(100), 0.1)
    assert (found.p50_ms, found.p99_ms) == pytest.approx((12, 12))
    assert found.queue_p99_ms == 0
    assert found.rows == 1
    assert found.utilisation == pytest.approx(0.001, rel=0.1)
    assert not found.is_overload


def test_at_a_low_rate_a_request_waits_for_the_delay() -> None:
    found = predict(BatchConfiguration(ONE, 16, 5000), CHEAP, demand(100), 0.1)
    assert (found.p50_ms, found.queue_p99_ms) == pytest.approx((15, 5))


def test_a_large_request_takes_the_time_of_its_rows() -> None:
    found = predict(BatchConfiguration(ONE, 16), CHEAP, demand(100, 16), 0.1)
    assert found.p50_ms == pytest.approx(25)
    assert found.rows == 16


def test_many_requests_share_batches() -> None:
    found = predict(BatchConfiguration(ONE, 16), CHEAP, demand(100), 500)
    assert 8 < found.rows <= 16
    assert found.utilisation == pytest.approx(1, rel=0.05)


def test_more_than_the_instances_can_do_is_overload() -> None:
    assert predict(SINGLE, SLOW, demand(100), 150).is_overload
    assert not predict(BatchConfiguration(Setup(2, 1), 1), SLOW, demand(100), 150).is_overload


@pytest.mark.parametrize(
    "configuration",
    [SINGLE, BatchConfiguration(Setup(2, 1), 1), BatchConfiguration(ONE, 16)],
    ids=str,
)
def test_more_requests_are_never_much_faster(configuration: BatchConfiguration) -> None:
    found = [
        predict(configuration, CHEAP, demand(100), rate).p99_ms
        for rate in (1, 20, 60, 90, 120, 200, 400, 800)
    ]
    assert all(after >= 0.95 * before for before, after in pairwise(found))
    assert found[-1] > 2 * found[0]


def test_capacity_within_a_generous_bound_is_what_one_instance_can_do() -> None:
    found = capacity(SINGLE, SLOW, demand(1000))
    assert found is not None
    assert 90 < found.rate <= 100


def test_capacity_is_the_highest_rate_within_the_bound() -> None:
    asked = demand(30)
    found = capacity(SINGLE, SLOW, asked)
    assert found is not None
    assert found.rate < 85
    assert found.p99_ms <= 30
    assert predict(SINGLE, SLOW, asked, 1.1 * found.rate).p99_ms > 30
    assert predict(SINGLE, SLOW, asked, found.rate) == found


def test_no_rate_keeps_a_bound_below_the_time_of_one_request() -> None:
    assert capacity(SINGLE, SLOW, demand(9.9)) is None
    assert capacity(SINGLE, constant({1: 0.010}, overhead=0.001), demand(10.9)) is None
    assert capacity(SINGLE, SLOW, demand(10.5)) is not None


def test_a_second_instance_doubles_the_capacity() -> None:
    one, two = (capacity(BatchConfiguration(Setup(n, 1), 1), SLOW, demand(1000)) for n in (1, 2))
    assert one is not None
    assert two is not None
    assert two.rate == pytest.approx(2 * one.rate, rel=0.08)


def test_batches_raise_the_capacity_where_they_are_cheaper_per_row() -> None:
    single, batched = (
        capacity(BatchConfiguration(ONE, size), CHEAP, demand(100)) for size in (1, 16)
    )
    assert single is not None
    assert batched is not None
    assert batched.rate > 4 * single.rate


def test_large_requests_lower_the_capacity() -> None:
    small, large = (
        capacity(BatchConfiguration(ONE, 16), CHEAP, demand(1000, rows)) for rows in (1, 8)
    )
    assert small is not None
    assert large is not None
    assert large.rate == pytest.approx(small.rate / 8, rel=0.1)
