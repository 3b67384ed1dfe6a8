"""Starts of several processes queue, and one that dies leaves the queue."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.models.ray import start_queue
from millrace.models.ray.start_queue import wait_turn

HOLDER = """
import sys
from pathlib import Path
from millrace.models.ray.start_queue import wait_turn
with wait_turn(Path(sys.argv[1]), "a start"):
    print("started", flush=True)
    sys.stdin.read()
"""


def test_a_start_waits_for_the_one_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, waited = tmp_path / "lock", []
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"started\n"

        @contextmanager
        def kill_other(step: str) -> Iterator[None]:
            waited.append(step)
            other.kill()
            yield

        monkeypatch.setattr(start_queue, "report_while", kill_other)
        with wait_turn(lock, "the start of Ray"):
            assert other.wait() < 0
    assert waited == ["the start of Ray is waiting for its turn: another command does it now"]


def test_a_free_start_waits_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_queue, "report_while", None)
    for _ in range(2):
        with wait_turn(tmp_path / "lock", "the start of Ray"):
            pass
