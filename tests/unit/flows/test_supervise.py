import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.flows.services.health import MIN_FAILURES, STARTUP_SECONDS, HealthHistory
from millrace.flows.services.service_specs import Service
from millrace.flows.services.supervisor import (
    AFTER_SECONDS,
    Supervisor,
    count_failures,
    restart_delay,
)
from millrace.flows.settings import Settings
from millrace.models.common.log_files import is_log_in_use


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
    settings.installation().prepared()
    server = Service("server", ("sleep", "60"), tmp_path / "1.log", health=tmp_path / "ready")
    client = Service("client", ("sleep", "60"), tmp_path / "2.log", after=("server", "elsewhere"))
    supervisor = Supervisor(settings, (server, client), clock)
    yield supervisor
    supervisor.stop_all()


def _started(supervisor: Supervisor) -> list[bool]:
    for child in supervisor.children:
        supervisor.update(child)
    return [child.process is not None for child in supervisor.children]


def test_a_first_start_waits_until_what_it_comes_after_is_well(two: Supervisor) -> None:
    assert _started(two) == [True, False]
    (two.settings.home / "ready").write_text(str(two.children[0].record.pid))
    assert _started(two) == [True, True]


def test_the_log_of_a_service_is_in_use_until_the_service_ends(two: Supervisor) -> None:
    two.start(two.children[0])
    log = two.children[0].service.log
    assert is_log_in_use(log)
    two.stop_all()
    assert log.exists()
    assert not is_log_in_use(log)


def test_it_waits_for_a_while_only(two: Supervisor, clock: Clock) -> None:
    assert _started(two) == [True, False]
    clock.now += AFTER_SECONDS
    assert _started(two) == [True, True]


def test_a_restart_waits_for_nobody(two: Supervisor) -> None:
    client = two.children[1]
    client.record = replace(client.record, started_at=1.0, restarts=1)
    assert _started(two) == [True, True]


@pytest.fixture
def on_demand(tmp_path: Path, clock: Clock) -> Iterator[Supervisor]:
    """A supervisor of a service that starts on request and ends at once."""
    settings = Settings(home=tmp_path)
    settings.installation().prepared()
    asked = Service("ray", ("true",), tmp_path / "1.log", request=tmp_path / "request")
    supervisor = Supervisor(settings, (asked,), clock)
    yield supervisor
    supervisor.stop_all()


def test_a_service_on_request_starts_once_per_request(on_demand: Supervisor) -> None:
    request = on_demand.settings.home / "request"
    assert _started(on_demand) == [False]
    request.touch()
    assert _started(on_demand) == [True]
    assert not request.exists()
    process = on_demand.children[0].process
    assert process is not None
    process.wait()
    assert _started(on_demand) == [False]
    assert _started(on_demand) == [False]
    assert on_demand.children[0].record.restarts == 0


def test_a_service_on_request_that_fails_is_counted_and_not_restarted(
    on_demand: Supervisor,
) -> None:
    child = on_demand.children[0]
    child.service = replace(child.service, argv=("false",))
    (on_demand.settings.home / "request").touch()
    assert _started(on_demand) == [True]
    assert child.process is not None
    child.process.wait()
    assert _started(on_demand) == [False]
    assert (child.record.restarts, child.record.last_exit) == (1, 1)
    assert _started(on_demand) == [False]


def test_a_restart_waits_longer_each_time_up_to_a_limit() -> None:
    assert [restart_delay(failures) for failures in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert restart_delay(50) == 30.0


def test_a_steady_run_forgives_earlier_failures() -> None:
    assert count_failures(5, uptime=61) == 1
    assert count_failures(5, uptime=3) == 6


PATIENCE = 120.0


def checked(*results: bool, every: float = 5.0) -> HealthHistory:
    """Return the checks of process 7, the first at 0 s; the last one is now."""
    history = HealthHistory()
    for number, is_healthy in enumerate(results):
        history = history.add_check(7, is_healthy=is_healthy, now=number * every)
    return history


def frozen(history: HealthHistory, now: float, pid: int = 7, uptime: float = 1000.0) -> bool:
    return history.is_frozen(pid, uptime=uptime, now=now, patience=PATIENCE)


def test_a_process_that_was_healthy_and_fails_every_check_for_long_is_frozen() -> None:
    history = checked(True, *[False] * 25)
    assert history.failing_since == 5.0
    assert frozen(history, now=5.0 + PATIENCE)
    assert not frozen(history, now=4.9 + PATIENCE)


def test_one_late_answer_among_many_failures_is_enough_to_live() -> None:
    history = checked(True, *[False] * 20, True, *[False] * 20)
    assert not frozen(history, now=5.0 * 41)


@pytest.mark.parametrize(
    ("history", "changed"),
    [
        (checked(*[False] * 100), {}),  # never healthy: it may still start
        (checked(True, *[False] * 100), {"pid": 8}),  # another process
        (checked(True, *[False] * 100), {"uptime": STARTUP_SECONDS - 1}),
        (checked(True, *[False] * (MIN_FAILURES - 1), every=500.0), {}),  # we stalled ourselves
        (HealthHistory(), {}),
    ],
)
def test_what_is_not_frozen(history: HealthHistory, changed: dict[str, float]) -> None:
    assert not frozen(history, now=10_000.0, **changed)  # type: ignore[arg-type]


def test_a_new_process_begins_anew() -> None:
    history = checked(True, *[False] * 9).add_check(8, is_healthy=False, now=50.0)
    assert (history.pid, history.was_healthy, history.failures) == (8, False, 1)


def test_failures_do_not_count_while_a_dependency_is_not_healthy() -> None:
    history = checked(True, *[False] * 9)
    history = history.add_check(7, is_healthy=False, now=50.0, is_excused=True)
    assert history == HealthHistory(7, was_healthy=True)


def _check_for(supervisor: Supervisor, clock: Clock, seconds: float, *numbers: int) -> None:
    for _ in range(int(seconds / 5)):
        clock.now += 5.0
        for number in numbers:
            supervisor.check_health(supervisor.children[number])
            supervisor.update(supervisor.children[number])


def test_a_frozen_process_is_killed_and_started_again(two: Supervisor, clock: Clock) -> None:
    server, ready = two.children[0], two.settings.home / "ready"
    two.update(server)
    pid = server.record.pid
    assert pid is not None
    ready.write_text(str(pid))
    _check_for(two, clock, STARTUP_SECONDS, 0)
    os.kill(pid, signal.SIGSTOP)
    ready.unlink()
    _check_for(two, clock, server.service.patience, 0)
    assert server.record.pid == pid
    clock.now += 5.0
    two.check_health(server)
    two.update(server)
    process = server.process
    assert process is not None
    assert process.wait(10) == -signal.SIGKILL
    two.update(server)
    assert (server.record.pid, server.record.restarts, server.record.last_exit) == (None, 1, -9)
    clock.now += 1.0
    two.update(server)
    assert server.record.pid not in (None, pid)


def test_what_waits_for_a_frozen_server_is_not_killed_for_it(two: Supervisor, clock: Clock) -> None:
    server, client = two.children
    client.service = replace(client.service, health=two.settings.home / "client", patience=60.0)
    two.wait_until = clock.now
    for child in (server, client):
        two.update(child)
        name = "ready" if child is server else "client"
        (two.settings.home / name).write_text(str(child.record.pid))
    _check_for(two, clock, STARTUP_SECONDS, 0, 1)
    for name in ("ready", "client"):
        (two.settings.home / name).unlink()
    _check_for(two, clock, 100.0, 0, 1)
    process = client.process
    assert process is not None
    assert (client.record.restarts, process.poll()) == (0, None)
    (two.settings.home / "ready").write_text(str(server.record.pid))
    _check_for(two, clock, 70.0, 0, 1)
    assert process.wait(10) == -signal.SIGKILL
