"""Servers that are killed while everything is up: all of it comes back by itself, as it was to be.

Releases that are killed are in `test_release_killed.py`, splitters in `test_rollout.py`.
"""

import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tests.integration.up import Up, all_up

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.timeout(600),
]
BACK_SECONDS = 60.0


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with all_up(tmp_path_factory.mktemp("killed") / "home") as found:
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


@pytest.mark.parametrize("kill", [Up.kill_triton, Up.kill_backend, Up.kill_mlflow])
def test_what_is_killed_at_rest_comes_back_as_it_was(up: Up, kill: Callable[[Up], None]) -> None:
    version = up.answers() or 0
    before = up.until_settled(version, BACK_SECONDS)
    kill(up)
    up.seconds_until(version, BACK_SECONDS)
    assert up.until_settled(version, BACK_SECONDS) == before


@pytest.mark.parametrize("kill", [Up.kill_triton, Up.kill_backend, Up.kill_mlflow])
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
