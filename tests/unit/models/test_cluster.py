"""Connecting to Ray: what it raises is told as ours."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from millrace.models.common import ray_cluster
from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.ray_cluster import START_LOCK, RaySession, connect_to_ray
from millrace.models.common.ray_folder import ray_folder
from millrace.models.common.ray_worker import job_file
from millrace.models.common.warm_ray import ReadyRay, WarmRay, fingerprint


class Starts:
    """Stands for `ray.init`, which fails the first so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.called = 0

    def __call__(self, **_: Any) -> None:
        self.called += 1
        if self.called <= self.failures:
            # what Ray 2.60 raises where its first process takes longer than it waits
            raise Exception("The current node timed out during startup. More words.")


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Starts]:
    def make(failures: int) -> Starts:
        made = Starts(failures)
        monkeypatch.setattr(ray, "init", made)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)
        return made

    return make


def test_a_slow_start_is_tried_again(starts: Callable[[int], Starts]) -> None:
    made = starts(2)
    with connect_to_ray("local", 1):
        pass
    assert made.called == 3


def test_one_process_starts_ray_at_a_time(
    starts: Callable[[int], Starts], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts(0)
    held: list[bool] = []
    monkeypatch.setattr(ray, "init", lambda **_: held.append(is_locked()))
    with connect_to_ray("local", 1):
        assert not is_locked()
    assert held == [True]


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


def test_the_address_of_a_jobs_api_is_nothing_to_connect_to() -> None:
    with (
        pytest.raises(InputError, match="RAY_ADDRESS=http://head:8265"),
        connect_to_ray("http://head:8265", 1),
    ):
        pass


def test_the_environment_of_a_command_is_removed_when_it_has_left_the_ray_of_up(
    starts: Callable[[int], Starts], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    starts(0)
    warm = WarmRay(tmp_path / "run")
    warm.create_folder()
    warm.write_ready(ReadyRay(7, "127.0.0.1:1", 4, fingerprint(os.environ)))
    context = SimpleNamespace(get_job_id=lambda: "01000000")
    file = job_file(tmp_path, "01000000")
    there: list[bool] = []
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    monkeypatch.setattr(ray, "shutdown", lambda: there.append(file.exists()))
    monkeypatch.setattr(ray_cluster, "require_tcp", lambda *_, **__: None)
    with connect_to_ray("local", 1, warm):
        assert file.exists()
    assert there[0]  # its workers may be starting until then
    assert not file.exists()


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
