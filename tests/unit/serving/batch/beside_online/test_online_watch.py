import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.batch.beside_online import online_watch
from millrace.serving.batch.beside_online.online_watch import OnlineWatch
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.triton.served_load import (
    BATCHES,
    COMPUTE_US,
    QUEUE_US,
    ROWS,
    SUCCESS,
    Samples,
)

GOAL = SloSpec(rate=100, p99_ms=20)
OWN = frozenset({("model", "digits"), ("version", "1")})


class Triton:
    """The metrics of a server whose requests wait as long as it is told."""

    def __init__(self) -> None:
        self.queue_ms, self.is_up = 0.0, True
        self.counts = dict.fromkeys((SUCCESS, QUEUE_US, COMPUTE_US, ROWS, BATCHES), 0.0)

    def read(self, _: Endpoint) -> Samples:
        if not self.is_up:
            raise TransientError("it is down")
        added = (100.0, 100e3 * self.queue_ms, 100e3, 100.0, 100.0)
        for name, more in zip(self.counts, added, strict=True):
            self.counts[name] += more
        return {(name, OWN): value for name, value in self.counts.items()}


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Triton:
    monkeypatch.setattr(online_watch, "EVERY", 0.02)
    return Triton()


def watch(triton: Triton, folder: Path, goals: dict[str, SloSpec] | None = None) -> OnlineWatch:
    goals = {"digits": GOAL} if goals is None else goals
    pause = PauseFile(folder / "batch.paused")
    return OnlineWatch(goals, lambda: [Endpoint()], pause, triton.read)


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_long_queue_stops_the_job_until_it_is_short(triton: Triton, tmp_path: Path) -> None:
    with watch(triton, tmp_path) as online:
        wait_until(lambda: len(online.moments) > 3)
        assert not online.pause.path.exists()
        triton.queue_ms = 4.0
        wait_until(online.pause.path.exists)
        triton.queue_ms = 0.1
        wait_until(lambda: not online.pause.path.exists())
    assert 1.9 < online.paused_seconds < 15


def test_a_job_that_ends_while_it_is_paused_leaves_no_file(triton: Triton, tmp_path: Path) -> None:
    triton.queue_ms = 9.0
    with watch(triton, tmp_path) as online:
        wait_until(online.pause.path.exists)
    assert not online.pause.path.exists()


def test_the_file_of_a_driver_that_was_killed_is_removed(triton: Triton, tmp_path: Path) -> None:
    PauseFile(tmp_path / "batch.paused").pause()
    with watch(triton, tmp_path) as online:
        assert not online.pause.path.exists()


def test_a_server_that_is_gone_does_not_stop_the_job(triton: Triton, tmp_path: Path) -> None:
    triton.is_up = False
    with watch(triton, tmp_path) as online:
        wait_until(lambda: len(online.moments) > 3)
        assert not online.pause.path.exists()


def test_nobody_is_watched_without_a_goal(triton: Triton, tmp_path: Path) -> None:
    with watch(triton, tmp_path, {}) as online:
        time.sleep(0.1)
    assert online.moments == []
    assert online.paused_seconds == 0.0
