"""The shares, the request and the ready file by which commands use the Ray of `up`."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.ray import warm as module
from millrace.models.ray.warm import SHARES, ReadyRay, WarmRay, fingerprint
from millrace.models.ray.worker import job_file, worker_environment

READY = ReadyRay(7, "127.0.0.1:1", 4, fingerprint({}))
HOLD = """
import sys
from pathlib import Path
from millrace.models.ray.warm import WarmRay
with WarmRay(Path(sys.argv[1])).share() as has_share:
    print(has_share, flush=True)
    sys.stdin.read()
"""


def holder(run: Path) -> "subprocess.Popen[str]":
    """Start a process that holds a share until it is killed."""
    command = [sys.executable, "-c", HOLD, str(run)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_a_killed_command_holds_no_share(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path)
    command = holder(tmp_path)
    assert warm.is_in_use()
    command.kill()
    command.communicate()
    assert not warm.is_in_use()


def test_there_are_so_many_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARE_SECONDS", 0.0)
    warm = WarmRay(tmp_path)
    shares = [warm.share() for _ in range(SHARES + 1)]
    assert [share.__enter__() for share in shares] == [True] * SHARES + [False]
    shares[0].__exit__(None, None, None)
    with warm.share() as has_share:
        assert has_share
    for share in shares[1:]:
        share.__exit__(None, None, None)
    assert not warm.is_in_use()


def test_no_command_gets_a_share_of_a_ray_that_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARE_SECONDS", 0.0)
    warm = WarmRay(tmp_path)
    warm.create_folder()
    with warm.reserve_all() as is_free, warm.share() as has_share:
        assert (is_free, has_share) == (True, False)


def test_a_use_is_remembered(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path)
    assert warm.last_use() == 0.0
    with warm.share():
        began = warm.last_use()
    assert 0.0 < began <= warm.last_use()


def test_what_is_ready_is_read_back_and_private(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path)
    warm.create_folder()
    assert warm.read_ready() is None
    warm.write_ready(READY)
    assert warm.read_ready() == READY
    assert warm.ready.read_text().splitlines()[0] == "7"
    assert warm.ready.stat().st_mode & 0o777 == 0o600
    warm.ready.write_text("7\n{}\n")
    assert warm.read_ready() is None


def test_the_environment_of_a_job_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.chdir(tmp_path)
    warm = WarmRay(tmp_path / "run")
    warm.create_folder()
    warm.write_job("01000000")
    file = job_file(warm.folder, "01000000")
    job = json.loads(file.read_text())
    assert (job["environment"]["SECRET"], job["folder"]) == ("s", str(tmp_path))
    assert file.stat().st_mode & 0o777 == 0o600
    warm.forget()
    assert not file.exists()


def test_a_command_asks_for_ray_before_it_needs_it(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path)
    warm.prepare(1)
    assert warm.request.exists()
    assert not warm.is_in_use()
    warm.request.unlink()
    warm.prepare(10_000)
    assert not warm.request.exists()
    warm.write_ready(READY)
    warm.prepare(1)
    assert not warm.request.exists()


def test_a_ray_that_is_ready_is_not_requested(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path)
    warm.create_folder()
    warm.write_ready(READY)
    assert warm.wait_until_ready() == READY
    assert not warm.request.exists()


def test_a_ray_that_does_not_start_is_not_waited_for(tmp_path: Path) -> None:
    warm = WarmRay(tmp_path, lambda: False)
    warm.create_folder()
    assert warm.wait_until_ready() is None
    assert not warm.request.exists()


def test_a_supervisor_that_notices_nothing_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    warm = WarmRay(tmp_path)
    warm.create_folder()
    assert warm.wait_until_ready() is None
    assert not warm.request.exists()


def test_variables_of_rays_processes_must_agree() -> None:
    ours = fingerprint({"RAY_memory_usage_threshold": "0.9", "HOME": "/a", "RAY_TRAIN_X": "1"})
    assert ours.difference(fingerprint({"RAY_memory_usage_threshold": "0.9"})) == ""
    assert ours.difference(fingerprint({})) == "other variables"
    assert fingerprint({"CUDA_VISIBLE_DEVICES": "1"}).difference(fingerprint({})) != ""


def test_another_version_is_named() -> None:
    ours = fingerprint({})
    theirs = replace(ours, ray="2.0", environment="/old")
    seen = ours.difference(theirs)
    assert seen == f"ray {ours.ray}, not 2.0, environment {ours.environment}, not /old"


def test_a_worker_has_the_environment_of_its_command() -> None:
    inherited = {"RAY_JOB_ID": "01", "MILLRACE_SUPERVISED": "/h", "A": "old", "B": "gone"}
    command = {"A": "new", "LD_PRELOAD": "x.so", "RAY_JOB_ID": "99"}
    assert worker_environment(command, inherited) == {
        "A": "new",
        "RAY_JOB_ID": "01",
        "MILLRACE_SUPERVISED": "/h",
    }
