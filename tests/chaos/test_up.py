"""Everything up: servers that are killed come back, and what is asked for is released.

The webhook releases at once, the watch anyway. Releases that are killed are in
`test_release_killed.py`, splitters in `test_rollout.py`.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from millrace.serving.release.ledger import ledger_of
from tests.integration.planted import busy, plant
from tests.integration.up import NAME, Up, all_up

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.timeout(600),
]

BACK_SECONDS = 60.0
CHECK = "millrace.serving.triton.load_check"
"""What opens a version in a process of its own, before a server does."""
KILLS = [Up.kill_triton, Up.kill_guard, Up.kill_backend, Up.kill_mlflow]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with all_up(tmp_path_factory.mktemp("up") / "home") as found:
        yield found


def in_a_release(up: Up) -> None:
    """Wait until a release is at work."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if up.is_in_a_release():
            return
        time.sleep(0.01)
    raise AssertionError("no release began")


def other(up: Up) -> int:
    answering = up.answers()
    assert answering is not None
    return 3 - answering


@pytest.mark.parametrize("kill", KILLS)
def test_what_is_killed_at_rest_comes_back_as_it_was(up: Up, kill: Callable[[Up], None]) -> None:
    version = up.answers() or 0
    before = up.until_settled(version, BACK_SECONDS)
    kill(up)
    up.seconds_until(version, BACK_SECONDS)
    assert up.until_settled(version, BACK_SECONDS) == before


@pytest.mark.parametrize("kill", KILLS)
def test_what_is_killed_in_a_release_comes_back_and_finishes_it(
    up: Up, kill: Callable[[Up], None]
) -> None:
    version = other(up)
    up.until_settled(3 - version, BACK_SECONDS)
    up.move(version)
    in_a_release(up)
    kill(up)
    up.seconds_until(version, BACK_SECONDS)
    assert up.until_settled(version, BACK_SECONDS) == {
        "live": version,
        "tags": {
            version: {
                "millrace.status": "live",
                "millrace.replicas": "1 of 1",
                "millrace.endpoint": up.installation.triton[0].grpc,
            },
            3 - version: {
                "millrace.status": "superseded",
                "millrace.reason": f"version {version} took its place",
            },
        },
        "last": ("live", version, 3 - version),
    }


def test_a_click_in_mlflow_changes_what_clients_get(up: Up) -> None:
    first = other(up)
    # The schedule or the watch may have come first, but not always.
    for version in (first, 3 - first) * 4:
        up.move(version)
        up.seconds_until(version, 30)
        if f"webhook: champion of {NAME}" in up.asked_by()[-1]:
            return
    pytest.fail("the webhook never came first")


def test_twelve_moves_in_a_row_end_in_the_last_one(up: Up) -> None:
    for move in range(12):
        up.move(1 + move % 2)
    up.seconds_until(2, 30)
    time.sleep(2.0)
    up.asked_by()
    assert up.answers() == 2


def test_what_a_frozen_receiver_did_not_hear_is_released_when_it_hears_again(up: Up) -> None:
    up.asked_by()  # it must not be stopped in the middle of a release, which holds the lock
    receiver = up.pid("webhook")
    os.kill(receiver, signal.SIGSTOP)
    try:
        up.move(1)
    finally:
        os.kill(receiver, signal.SIGCONT)
    up.seconds_until(1, 60)


def test_a_receiver_that_was_killed_comes_back_and_catches_up(up: Up) -> None:
    os.kill(up.pid("webhook"), signal.SIGKILL)
    up.move(2)
    up.seconds_until(2, 120)
    up.move(1)
    up.seconds_until(1, 60)


def trial_of(up: Up, model: str) -> psutil.Process:
    """Wait for the process that opens a version of a model, and return it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or ()  # None: just gone
            opens = [each for each in words if each.startswith(str(up.settings.home))]
            if CHECK in words and any(model in Path(each).parts for each in opens):
                return process
        time.sleep(0.05)
    pytest.fail(f"no trial of {model} began")


def test_a_candidate_that_hangs_keeps_no_other_model_from_going_live(up: Up) -> None:
    """Its trial is stopped, so that its use of a core delays nobody."""
    up.move(1)
    up.seconds_until(1, 60)
    plant(up.installation, "hangs", busy(4000, 400, depends=True))
    up.move(1, "hangs")
    trial_of(up, "hangs").suspend()
    assert up.is_in_a_release("hangs")
    up.move(2)
    up.seconds_until(2, 40)
    up.asked_by()  # when that release is written down
    # The other model went live before the candidate's trial ended.
    ledger = ledger_of(up.installation)
    live = next(each.at for each in reversed(ledger.releases(NAME)) if each.kind == "live")
    outcomes = ledger.releases("hangs")
    assert outcomes or up.is_in_a_release("hangs")
    assert not [each for each in outcomes if each.at < live]
