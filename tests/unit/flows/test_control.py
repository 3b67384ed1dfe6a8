import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.flows.services import control
from millrace.flows.settings import Settings
from millrace.models.common.errors import WorkError


@pytest.fixture
def chosen(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path)


@pytest.fixture
def downs(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The homes that were taken down, for want of anything that runs."""
    seen: list[Settings] = []
    monkeypatch.setattr(control, "down", lambda settings, report: seen.append(settings))
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
        control._stay_until_end(chosen, sleeper, lambda line: None)
    assert downs == [chosen]


def test_a_supervisor_that_was_told_to_end_is_no_error(
    chosen: Settings, downs: list[Settings], sleeper: "subprocess.Popen[bytes]"
) -> None:
    sleeper.terminate()
    control._stay_until_end(chosen, sleeper, lambda line: None)
    assert downs == [chosen]


UP = """
import subprocess, sys
from pathlib import Path
from millrace.flows.services import control
from millrace.flows.settings import Settings

control.down = lambda settings, report: print("down", flush=True)
sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with control._sigterm_as_interrupt():
    settings = Settings(home=Path(sys.argv[1]))
    control._stay_until_end(settings, sleeper, lambda line: print(line, flush=True))
sleeper.kill()
print("done", flush=True)
"""


def test_sigterm_stops_what_runs_as_ctrl_c_does(tmp_path: Path) -> None:
    """In a process of its own: a signal that comes amiss ends the one that is sent it."""
    with subprocess.Popen(
        [sys.executable, "-c", UP, tmp_path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "running" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=60)[0].split() == ["down", "done"]
    assert process.returncode == 0
