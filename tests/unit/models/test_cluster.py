"""Connecting to Ray: what it raises is told as ours."""

import fcntl
from collections.abc import Callable
from threading import Event, current_thread
from typing import Any

import pytest
import ray

from millrace.models.common import ray_head
from millrace.models.common.embedded_ray import START_LOCK, EmbeddedRay
from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.ray_cluster import RaySession, connect_to_ray
from millrace.models.common.ray_folder import ray_folder


class Starts:
    """Stands for the start of Ray's processes, which fails the first so many times."""

    gcs_address = "127.0.0.1:1"

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.called = 0
        self.ended = 0
        self.is_connected = False
        self.was_locked: list[bool] = []

    def start_head(self, cpus: int) -> "Starts":
        self.called += 1
        self.was_locked.append(is_locked())
        if self.called <= self.failures:
            # what Ray 2.60 raises where its first process takes longer than it waits
            raise Exception("The current node timed out during startup. More words.")
        return self

    def kill_all_processes(self, **_: bool) -> None:
        assert not self.is_connected
        self.ended += 1

    def init(self, address: str, **_: Any) -> None:
        assert address == self.gcs_address
        self.is_connected = True

    def shutdown(self) -> None:
        self.is_connected = False


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Starts]:
    def make(failures: int) -> Starts:
        made = Starts(failures)
        monkeypatch.setattr(ray_head, "start_head", made.start_head)
        monkeypatch.setattr(ray, "init", made.init)
        monkeypatch.setattr(ray, "is_initialized", lambda: made.is_connected)
        monkeypatch.setattr(ray, "shutdown", made.shutdown)
        return made

    return make


def test_a_slow_start_is_tried_again(starts: Callable[[int], Starts]) -> None:
    made = starts(2)
    with connect_to_ray("local", 1):
        assert made.is_connected
        assert made.ended == 0
    assert (made.called, made.ended, made.is_connected) == (3, 1, False)


def test_one_process_starts_ray_at_a_time(starts: Callable[[int], Starts]) -> None:
    made = starts(0)
    with connect_to_ray("local", 1):
        assert not is_locked()
    assert made.was_locked == [True]


def is_locked() -> bool:
    with ray_folder().with_name(START_LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_start_that_fails_again_is_told(starts: Callable[[int], Starts]) -> None:
    made = starts(9)
    with pytest.raises(TransientError, match="did not start") as told, connect_to_ray("local", 1):
        pass
    assert made.called == 3
    assert "timed out during startup" in str(told.value.seen)


def test_ray_starts_in_a_thread_that_lives_as_long(
    monkeypatch: pytest.MonkeyPatch, starts: Callable[[int], Starts]
) -> None:
    made, may_start, threads = starts(0), Event(), []

    def start_head(cpus: int) -> Starts:
        threads.append(current_thread())
        may_start.wait()
        return made

    monkeypatch.setattr(ray_head, "start_head", start_head)
    with RaySession("local", 1) as session:
        session.prepare()
        session.prepare()
        assert not made.is_connected  # the start does not hold up the command
        may_start.set()
        session.connect()
        (thread,) = threads
        assert thread is not current_thread()
        assert thread.is_alive()
    assert made.ended == 1
    assert not thread.is_alive()


def test_a_ray_that_is_not_needed_after_all_is_ended(starts: Callable[[int], Starts]) -> None:
    made = starts(0)
    with RaySession("local", 1) as session:
        session.prepare()
    assert (made.called, made.ended) == (1, 1)
    EmbeddedRay(1).close()  # one that was never begun


def test_the_address_of_a_jobs_api_is_nothing_to_connect_to() -> None:
    with (
        pytest.raises(InputError, match="RAY_ADDRESS=http://head:8265"),
        connect_to_ray("http://head:8265", 1),
    ):
        pass


def test_a_session_connects_when_it_is_needed(starts: Callable[[int], Starts]) -> None:
    made = starts(0)
    with RaySession("local", 1) as session:
        assert made.called == 0
        session.connect()
        assert made.called == 1


def test_a_session_of_a_connected_process_starts_nothing(
    starts: Callable[[int], Starts], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = starts(0)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with RaySession("local", 1) as session:
        session.connect()
    assert made.called == 0
