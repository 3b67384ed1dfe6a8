"""Replicas follow the load, and none of the faults that other scalers had."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from millrace.serving.profile.scaler import (
    DOWN_SECONDS,
    HAND_SECONDS,
    WARM_SECONDS,
    Bounds,
    Decision,
    Memory,
    Seen,
    decide,
    target_rate,
)

BOUNDS = Bounds(fewest=1, most=3, capacity=100, bound_ms=50)
EVERY = 5.0
START_SECONDS = 12.0
"""How long a replica of the world takes to answer."""


@dataclass
class World:
    """Replicas that do what is decided, and take a while to start."""

    bounds: Bounds = BOUNDS
    replicas: int = 1
    now: float = 0.0
    memory: Memory = Memory()
    started: float = -1e9

    def look(self, rate: float | None, queue: float | None = 1.0) -> Decision:
        self.now += EVERY
        ready = self.replicas if self.now - self.started >= START_SECONDS else 1
        seen = Seen(self.now, self.replicas, ready, rate, queue)
        found = decide(self.bounds, seen, self.memory)
        if found.replicas > self.replicas:
            self.started = self.now
        self.replicas, self.memory = found.replicas, found.memory
        return found

    def run(self, seconds: float, rate: Callable[[float], float | None]) -> Iterator[int]:
        end = self.now + seconds
        while self.now < end:
            yield self.look(rate(self.now)).replicas


def test_one_two_three_and_back_under_a_ramp() -> None:
    world = World()
    up = list(world.run(600, lambda now: now * 0.4))
    down = list(world.run(2000, lambda now: max(0.0, 240 - (now - 600) * 0.4)))
    assert sorted(set(up)) == [1, 2, 3]
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)
    assert (down[0], down[-1]) == (3, 1)


@pytest.mark.parametrize("rate", [0.0, 10, 79, 81, 100, 143, 145, 159, 161, 239, 500])
def test_at_a_constant_load_nothing_goes_back_and_forth(rate: float) -> None:
    world = World(replicas=3)
    seen = list(world.run(3600, lambda now: rate))
    changes = np.flatnonzero(np.diff(seen))
    assert len(changes) <= 2
    assert np.all(np.diff(seen) <= 0)
    assert len(set(seen[-120:])) == 1


def test_two_replicas_whose_load_one_cannot_take_stay_two() -> None:
    """45 of 100 each looks idle; together they are 90, more than 80% of one."""
    assert set(World(replicas=2).run(3600, lambda now: 90.0)) == {2}


def test_a_load_that_swings_around_a_limit_changes_nothing_for_long() -> None:
    world = World(replicas=2)
    seen = list(world.run(3600, lambda now: 80 + 15 * np.sin(now / 20)))
    assert set(seen) == {2}


def test_without_traffic_the_fewest_are_left() -> None:
    world = World(replicas=3)
    assert list(world.run(3 * DOWN_SECONDS, lambda now: 0.0))[-1] == 1


@pytest.mark.parametrize("rate", [None, float("nan"), float("inf")])
def test_a_missing_rate_changes_nothing(rate: float | None) -> None:
    world = World(replicas=2)
    assert set(world.run(3600, lambda now: rate)) == {2}


def test_a_rate_that_goes_missing_does_not_count_as_time_of_little_load() -> None:
    world = World(replicas=2)
    list(world.run(DOWN_SECONDS - EVERY, lambda now: 0.0))
    world.look(None)
    assert set(world.run(DOWN_SECONDS - EVERY, lambda now: 0.0)) == {2}


def test_requests_that_wait_get_one_more_but_not_while_it_starts() -> None:
    world = World()
    found = [world.look(10.0, queue=40.0) for _ in range(8)]
    assert [each.replicas for each in found] == [2] * 6 + [3, 3]
    assert "requests wait 40 ms of 50 ms" in found[0].reason
    assert WARM_SECONDS == 30


def test_slow_answers_of_a_new_replica_do_not_lower_the_capacity() -> None:
    world = World()
    world.look(120.0)
    assert world.replicas == 2
    for _ in range(int(WARM_SECONDS / EVERY) - 1):
        assert world.look(120.0, queue=49.0).replicas == 2
    assert set(world.run(600, lambda now: 120.0)) == {2}


@pytest.mark.parametrize("rate", [1e6, 300.0])
def test_there_are_never_more_than_allowed(rate: float) -> None:
    world = World()
    assert max(world.run(600, lambda now: rate)) == 3
    assert world.look(rate, queue=1e9).replicas == 3


def test_what_a_person_set_is_kept_for_a_while() -> None:
    world = World(replicas=1)
    world.look(10.0)
    world.replicas = 3
    kept = list(world.run(HAND_SECONDS - EVERY, lambda now: 10.0))
    assert set(kept) == {3}
    assert list(world.run(3 * DOWN_SECONDS, lambda now: 10.0))[-1] == 1


def test_a_number_outside_of_the_limits_is_corrected() -> None:
    assert World(replicas=7).look(10.0).replicas == 3
    assert World(bounds=Bounds(2, 3, 100, 50), replicas=1).look(0.0).replicas == 2


def test_an_unknown_capacity_gets_the_most() -> None:
    assert World(bounds=Bounds(1, 3, 0.0, 50)).look(1.0).replicas == 3


def test_a_clusters_scaler_aims_below_the_capacity() -> None:
    assert target_rate(100) == pytest.approx(80)
