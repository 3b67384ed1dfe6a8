"""What makes a release happen, with everything up: the webhook at once, the schedule anyway."""

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.integration.planted import busy, plant
from tests.integration.up import NAME, Up, all_up

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with all_up(tmp_path_factory.mktemp("triggers") / "home") as found:
        yield found


def test_a_click_in_mlflow_changes_what_clients_get(up: Up) -> None:
    # The schedule or the watch may have come first, but not always.
    for version in (2, 1, 2, 1, 2, 1, 2, 1):
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


def test_a_candidate_that_hangs_keeps_no_other_model_from_going_live(up: Up) -> None:
    up.move(1)
    up.seconds_until(1, 60)
    plant(up.installation, "hangs", busy(4000, 400, depends=True))
    up.move(1, "hangs")
    deadline = time.monotonic() + 30
    while not up.is_in_a_release("hangs"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    up.move(2)
    up.seconds_until(2, 40)
    assert up.is_in_a_release("hangs")
