"""Connecting to Ray: what it raises is told as ours."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.ray_folder import ray_folder
from millrace.models.ray import cluster, embedded, head
from millrace.models.ray.cluster import RaySession, connect_to_ray
from millrace.models.ray.embedded import EmbeddedRay, begin_embedded, take_embedded
from millrace.models.ray.server import START_LOCK, start_ray
from millrace.models.ray.warm import ReadyRay, WarmRay, fingerprint
from millrace.models.ray.worker import job_file


class Starts:
    """Stands for the start of Ray's processes, which fails the first so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.was_locked: list[bool] = []

    def __call__(self, cpus: int) -> "Starts":
        self.was_locked.append(is_locked())
        if len(self.was_locked) <= self.failures:
            # what Ray 2.60 raises where its first process takes longer than it waits
            raise Exception("The current node timed out during startup. More words.")
        return self


def is_locked() -> bool:
    with ray_folder().with_name(START_LOCK).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Starts]:
    def make(failures: int) -> Starts:
        made = Starts(failures)
        monkeypatch.setattr(head, "start_head", made)
        return made

    return make


def test_a_slow_start_is_tried_again(starts: Callable[[int], Starts]) -> None:
    made = starts(2)
    assert start_ray(1) is made
    assert len(made.was_locked) == 3


def test_one_process_starts_ray_at_a_time(starts: Callable[[int], Starts]) -> None:
    made = starts(0)
    start_ray(1)
    assert made.was_locked == [True]
    assert not is_locked()


def test_a_start_that_fails_again_is_told(starts: Callable[[int], Starts]) -> None:
    made = starts(9)
    with pytest.raises(WorkError, match="did not start") as told:
        start_ray(1)
    assert len(made.was_locked) == 3
    assert "timed out during startup" in str(told.value.seen)


def test_a_server_that_ends_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SERVER", "no_such_module")
    before = set(ray_folder().parent.iterdir())
    made = EmbeddedRay(1)
    try:
        with pytest.raises(TransientError, match="did not start") as told:
            made.wait_until_ready()
    finally:
        made.close()
    assert "no_such_module" in str(told.value.seen)
    assert set(ray_folder().parent.iterdir()) <= before


def test_the_address_of_a_jobs_api_is_nothing_to_connect_to() -> None:
    with (
        pytest.raises(InputError, match="RAY_ADDRESS=http://head:8265"),
        connect_to_ray("http://head:8265", 1),
    ):
        pass


class Embedded:
    """Stands for an embedded Ray."""

    fork_server = ""

    def __init__(self, processes: int, imports: Any = ()) -> None:
        self.address, self.is_closed = "127.0.0.1:1", False
        self.warm = self

    def wait_until_ready(self) -> "Embedded":
        return self

    def write_job(self, job: str) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that are connected to."""
    found: list[str] = []

    def init(address: str, **_: Any) -> None:
        found.append(address)

    monkeypatch.setattr(embedded, "EmbeddedRay", Embedded)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(found))
    monkeypatch.setattr(ray, "shutdown", found.clear)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: Context())
    return found


class Context:
    """Stands for Ray's runtime context."""

    def get_job_id(self) -> str:
        return "01000000"


def test_the_environment_of_a_command_is_removed_when_it_has_left_the_ray_of_up(
    connected: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warm = WarmRay(tmp_path / "run")
    warm.create_folder()
    warm.write_ready(ReadyRay(7, "127.0.0.1:1", 4, fingerprint(os.environ)))
    file = job_file(warm.folder, "01000000")
    there: list[bool] = []
    monkeypatch.setattr(ray, "shutdown", lambda: there.append(file.exists()))
    monkeypatch.setattr(cluster, "require_tcp", lambda *_, **__: None)
    with connect_to_ray("local", 1, warm):
        assert file.exists()
    assert there[0]  # its workers may be starting until then
    assert not file.exists()


def test_a_session_connects_when_it_is_needed(connected: list[str]) -> None:
    with RaySession("local", 1) as session:
        assert connected == []
        session.connect()
        session.connect()
        assert connected == ["127.0.0.1:1"]
    assert connected == []


def test_a_session_of_a_connected_process_starts_nothing(connected: list[str]) -> None:
    connected.append("another")
    with RaySession("local", 1) as session:
        session.connect()
    assert connected == ["another"]


def test_a_ray_that_was_begun_is_the_one_that_is_used_and_ended(
    connected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_embedded(1)
    begin_embedded(1)
    begun: list[Any] = list(embedded._begun)
    assert len(begun) == 1
    with connect_to_ray("local", 1):
        assert not begun[0].is_closed
    assert begun[0].is_closed
    assert take_embedded(1) is not begun[0]


def test_a_connection_that_fails_ends_its_ray(
    connected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str, **_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "init", refuse)
    begin_embedded(1)
    begun: list[Any] = list(embedded._begun)
    with pytest.raises(TransientError, match="nobody there"), connect_to_ray("local", 1):
        pass
    assert begun[0].is_closed
