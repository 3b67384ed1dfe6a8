"""When a replica of Triton begins to get requests."""

from pathlib import Path

import pytest

from millrace.flows.triggers.replica_joiner import ReplicaJoiner
from millrace.models.common.errors import TransientError
from millrace.serving.replicas.files import Fleet, RunningReplica, read_ready, write_fleet


class Watched:
    """A joiner, what it is told of each replica, and what it requested."""

    def __init__(self, run: Path) -> None:
        self.run, self.states, self.requests, self.looks = run, {}, [], 0
        self.joiner = ReplicaJoiner(run, self.look, self.requests.append)

    def look(self, number: int) -> str:
        self.looks += 1
        return self.states[number]

    def check(self, *states: str, pid: int = 10) -> None:
        found = tuple(RunningReplica(n, pid + n, state) for n, state in enumerate(states, 1))
        write_fleet(self.run, Fleet(8001, len(states), found))
        self.joiner.check()


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_who_loads_requests_one_release_and_joins_when_it_serves(watched: Watched) -> None:
    watched.states = {2: "loading"}
    watched.check("serving", "loading")
    watched.check("serving", "loading")
    assert watched.requests == ["replica 2 of Triton has started"]
    assert read_ready(watched.run, 2) is None
    watched.states = {2: "serving"}
    watched.check("serving", "loading")
    assert read_ready(watched.run, 2) == 12


def test_a_process_that_was_started_anew_requests_again(watched: Watched) -> None:
    watched.states = {1: "loading"}
    watched.check("loading")
    watched.check("loading", pid=20)
    assert len(watched.requests) == 2


def test_who_serves_drains_or_stands_is_not_looked_at(watched: Watched) -> None:
    watched.check("serving", "draining", "stopped")
    assert watched.looks == 0


def test_who_does_not_answer_yet_requests_nothing(watched: Watched) -> None:
    watched.states = {1: "away"}
    watched.check("loading")
    assert watched.requests == []


def test_a_look_that_fails_is_tried_again(watched: Watched) -> None:
    def fails(number: int) -> str:
        raise TransientError("MLflow is away")

    joiner = ReplicaJoiner(watched.run, fails, watched.requests.append)
    write_fleet(watched.run, Fleet(8001, 1, (RunningReplica(1, 11, "loading"),)))
    assert joiner.check() > 0


def test_without_replicas_it_does_nothing(watched: Watched) -> None:
    assert watched.joiner.check() > 0
    assert watched.looks == 0
