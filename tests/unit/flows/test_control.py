import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import control
from flows.settings import Settings
from models.errors import WorkError


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def downs(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The homes that were taken down, for want of anything that runs."""
    seen: list[Settings] = []
    monkeypatch.setattr(control, "down", lambda settings, say: seen.append(settings))
    return seen


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_supervisor_that_was_killed_is_an_error_and_nothing_stays(
    chosen: Settings, downs: list[Settings], sleeper: "subprocess.Popen[bytes]"
) -> None:
    sleeper.kill()
    with pytest.raises(WorkError, match="status -9"):
        control._stay(chosen, sleeper, control._silent)
    assert downs == [chosen]


def test_a_supervisor_that_was_told_to_end_is_no_error(
    chosen: Settings, downs: list[Settings], sleeper: "subprocess.Popen[bytes]"
) -> None:
    sleeper.terminate()
    control._stay(chosen, sleeper, control._silent)
    assert downs == [chosen]


def test_sigterm_stops_what_runs_as_ctrl_c_does(
    chosen: Settings, downs: list[Settings], sleeper: "subprocess.Popen[bytes]"
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with control._sigterm_as_ctrl_c():
        control._stay(chosen, sleeper, control._silent)
    assert downs == [chosen]
    assert signal.getsignal(signal.SIGTERM) is before
