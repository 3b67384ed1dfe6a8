from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.services import Service
from flows.settings import Settings
from flows.supervise import AFTER_SECONDS, Supervisor, failures_in_a_row, restart_delay


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def two(tmp_path: Path, clock: Clock) -> Iterator[Supervisor]:
    """A supervisor of a server, which is well once its file holds its pid, and what comes after."""
    settings = Settings(home=tmp_path)
    settings.places().prepared()
    server = Service("server", ("sleep", "60"), tmp_path / "1.log", health=tmp_path / "ready")
    client = Service("client", ("sleep", "60"), tmp_path / "2.log", after=("server", "elsewhere"))
    supervisor = Supervisor(settings, (server, client), clock)
    yield supervisor
    supervisor.stop_all()


def _started(supervisor: Supervisor) -> list[bool]:
    for child in supervisor.children:
        supervisor.tend(child)
    return [child.process is not None for child in supervisor.children]


def test_a_first_start_waits_until_what_it_comes_after_is_well(two: Supervisor) -> None:
    assert _started(two) == [True, False]
    (two.settings.home / "ready").write_text(str(two.children[0].record.pid))
    assert _started(two) == [True, True]


def test_it_waits_for_a_while_only(two: Supervisor, clock: Clock) -> None:
    assert _started(two) == [True, False]
    clock.now += AFTER_SECONDS
    assert _started(two) == [True, True]


def test_a_restart_waits_for_nobody(two: Supervisor) -> None:
    client = two.children[1]
    client.record = replace(client.record, started_at=1.0, restarts=1)
    assert _started(two) == [True, True]


def test_a_restart_waits_longer_each_time_up_to_a_limit() -> None:
    assert [restart_delay(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert restart_delay(50) == 30.0


def test_a_steady_run_forgives_earlier_failures() -> None:
    assert failures_in_a_row(5, ran_seconds=61) == 1
    assert failures_in_a_row(5, ran_seconds=3) == 6
