"""The load of the replicas, in the words of the scaler."""

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.replicas.load import Capacity, Traffic, TrafficMeter, mix_load
from millrace.serving.triton.served_load import FAILURE, QUEUE_US, SUCCESS

SPEC = ReplicasSpec(min=1, max=3)
FAST, SLOW = Capacity("fast", 100.0, 50.0), Capacity("slow", 10.0, 500.0)
ONE, TWO = Endpoint(replica=1), Endpoint(replica=2)


def test_one_model_is_counted_as_it_is() -> None:
    load = mix_load(SPEC, [FAST], {"fast": Traffic(40.0, 3.0), "unknown": Traffic(1e6)})
    assert (load.rate, load.bounds.capacity, load.queue_ms) == (40.0, 100.0, 3.0)
    assert (load.bounds.fewest, load.bounds.most, load.bounds.bound_ms) == (1, 3, 50.0)


def test_of_a_mix_a_replica_takes_as_much_as_its_time_allows() -> None:
    load = mix_load(SPEC, [FAST, SLOW], {"fast": Traffic(9.0), "slow": Traffic(9.0)})
    assert load.rate == 18.0
    assert load.bounds.capacity == pytest.approx(18.18, abs=0.01)


def test_the_model_that_waits_longest_by_its_own_bound_counts() -> None:
    traffic = {"fast": Traffic(1.0, 40.0), "slow": Traffic(1.0, 100.0)}
    load = mix_load(SPEC, [FAST, SLOW], traffic)
    assert (load.queue_ms, load.bounds.bound_ms) == (40.0, 50.0)


def test_without_requests_the_load_is_zero_and_not_unknown() -> None:
    load = mix_load(SPEC, [FAST, SLOW], {"fast": Traffic(0.0), "slow": Traffic(0.0)})
    assert (load.rate, load.bounds.capacity) == (0.0, 10.0)


def test_a_model_without_metrics_makes_the_load_unknown() -> None:
    assert mix_load(SPEC, [FAST, SLOW], {"fast": Traffic(0.0)}).rate is None
    assert mix_load(SPEC, [FAST], {}).rate is None


def test_without_metrics_the_load_is_unknown_and_not_zero() -> None:
    assert mix_load(SPEC, [FAST], None).rate is None
    assert mix_load(SPEC, [FAST], None).queue_ms is None


class Metrics:
    """Counters of replicas, and a clock."""

    def __init__(self) -> None:
        self.now, self.done = 0.0, {1: 0.0, 2: 0.0}
        self.away: set[int] = set()
        self.empty: set[int] = set()
        self.meter = TrafficMeter(self.read, lambda: self.now)

    def read(self, endpoint: Endpoint) -> dict:
        if endpoint.replica in self.away:
            raise TransientError("no metrics")
        if endpoint.replica in self.empty:
            return {}
        done, labels = self.done[endpoint.replica], frozenset({("model", "m"), ("version", "1")})
        values = {SUCCESS: done, FAILURE: done / 10, QUEUE_US: done * 2000}
        return {(name, labels): value for name, value in values.items()}

    def look(self, *replicas: Endpoint, seconds: float = 5.0, requests: float = 0.0):
        self.now += seconds
        self.done = {number: done + requests for number, done in self.done.items()}
        return self.meter.measure(replicas)


def test_requests_to_all_replicas_are_added_up() -> None:
    metrics = Metrics()
    assert metrics.look(ONE, TWO) is None
    found = metrics.look(ONE, TWO, requests=100)
    assert found is not None
    assert found["m"].rate == pytest.approx(2 * (20 + 2))
    assert found["m"].queue_ms == pytest.approx(2 * 40 / 44, abs=0.01)


def test_nothing_is_known_until_a_new_replica_was_looked_at_twice() -> None:
    metrics = Metrics()
    metrics.look(ONE)
    assert metrics.look(ONE, requests=10) is not None
    assert metrics.look(ONE, TWO, requests=10) is None
    assert metrics.look(ONE, TWO, requests=10) is not None


def test_a_replica_that_does_not_say_makes_the_load_unknown() -> None:
    metrics = Metrics()
    metrics.look(ONE, TWO)
    metrics.away = {2}
    assert metrics.look(ONE, TWO, requests=10) is None
    metrics.away = set()
    assert metrics.look(ONE, TWO, requests=10) is None
    assert metrics.look(ONE, TWO, requests=10) is not None


def test_an_empty_page_of_one_replica_is_not_taken_for_no_requests() -> None:
    metrics = Metrics()
    metrics.empty = {2}
    metrics.look(ONE, TWO)
    assert metrics.look(ONE, TWO, requests=10) == {}


def test_without_a_replica_nothing_is_known() -> None:
    assert Metrics().look() is None


def test_counters_of_a_replica_that_was_started_anew_count_from_zero() -> None:
    metrics = Metrics()
    metrics.look(ONE, requests=1000)
    metrics.done = {1: 0.0, 2: 0.0}
    found = metrics.look(ONE, requests=50)
    assert found is not None
    assert found["m"].rate == pytest.approx(11.0)
