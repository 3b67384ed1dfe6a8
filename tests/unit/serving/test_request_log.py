"""The files of the request log: what is written, and what happens when that is not possible."""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millrace.serving.triton import backend_directory

SPEC = {"sample": 1.0, "max_gib": 1.0}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(backend_directory.BACKENDS / "named_columns"))
    found = importlib.import_module("request_log")
    monkeypatch.setattr(found, "WRITE_SECONDS", 0.02)
    monkeypatch.setattr(found, "PAUSE_SECONDS", 0.05)
    yield found
    sys.modules.pop("request_log", None)


@pytest.fixture
def open_log(module: ModuleType, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    logs: list[Any] = []

    def opened(warnings: list[str] | None = None, **spec: float) -> Any:
        warn = (warnings if warnings is not None else []).append
        log = module.RequestLog(tmp_path / "m", {**SPEC, **spec}, lambda n: [{"n": n}], warn)
        logs.append(log)
        return log

    yield opened
    for each in logs:
        each.close()


def numbers(folder: Path) -> list[int]:
    lines = [line for file in sorted(folder.glob("*")) for line in file.read_text().splitlines()]
    return sorted(json.loads(line)["n"] for line in lines)


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_is_handed_over_is_written_and_closed_at_the_end(
    open_log: Callable[..., Any], tmp_path: Path
) -> None:
    log = open_log()
    for n in range(100):
        log.add(n)
    wait_for(lambda: (tmp_path / "m").exists() and len(numbers(tmp_path / "m")) == 100)
    log.add(100)
    log.close()
    assert numbers(tmp_path / "m") == list(range(101))
    assert {each.suffix for each in (tmp_path / "m").iterdir()} == {".jsonl"}
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "m").iterdir()} == {0o600}


def test_files_that_are_taken_away_lose_nothing(
    open_log: Callable[..., Any], tmp_path: Path
) -> None:
    from millrace.serving.request_table import _finished

    log, folder, seen = open_log(), tmp_path / "m", list[int]()
    for n in range(400):
        log.add(n)
        if n % 40 == 0 and folder.exists():
            for file in _finished(folder):
                seen += [json.loads(line)["n"] for line in file.read_text().splitlines()]
                file.unlink()
        time.sleep(0.001)
    log.close()
    assert sorted(seen + numbers(folder)) == list(range(400))
    assert seen


def test_a_file_that_is_collected_while_a_new_one_is_opened_loses_nothing(
    module: ModuleType,
    open_log: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "m").mkdir()
    collected = iter([tmp_path / "m" / "1-1.jsonl"])
    monkeypatch.setattr(module.Path, "iterdir", lambda folder: collected)
    warnings: list[str] = []
    log = open_log(warnings)
    log.add(1)
    log.close()
    assert numbers(tmp_path / "m") == [1]
    assert warnings == []


def test_a_full_disk_is_said_and_the_next_requests_are_kept(
    module: ModuleType,
    open_log: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warnings: list[str] = []
    log, write = open_log(warnings), os.write
    monkeypatch.setattr(module.os, "write", lambda file, data: write(file, data[:3]))
    log.add(1)
    wait_for(lambda: warnings)
    assert "1 requests are not kept: the disk is full" in warnings[0]
    monkeypatch.setattr(module.os, "write", write)
    log.add(2)
    wait_for(lambda: numbers(tmp_path / "m") == [2])


def test_a_folder_that_nobody_collects_does_not_grow_beyond_its_limit(
    open_log: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "1-1.jsonl").write_text('{"n": 0}\n' * 100)
    warnings: list[str] = []
    log = open_log(warnings, max_gib=500 / 2**30)
    log.add(1)
    wait_for(lambda: warnings)
    assert "nobody collected" in warnings[0]


def test_a_folder_that_cannot_be_made_is_said(open_log: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "m").write_text("a file")
    warnings: list[str] = []
    open_log(warnings).add(1)
    wait_for(lambda: warnings)


def test_a_sample_is_kept_and_too_many_are_dropped(
    module: ModuleType, open_log: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(sample=0.1)
    assert 20 < sum(log.wants() for _ in range(1000)) < 200
    monkeypatch.setattr(module, "WRITE_SECONDS", 60.0)
    slow = open_log()
    for n in range(module.MOST_WAITING + 7):
        slow.add(n)
    assert slow.dropped >= 7
