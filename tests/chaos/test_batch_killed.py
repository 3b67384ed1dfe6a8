"""The short form of the second part of `make soak`."""

import sys
from pathlib import Path

import pytest

from tests.chaos.batch_kills import MANY, content, dead, leftovers, prepare, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kills are Linux's")

ROWS = 40_000
PAUSE = 0.3
"""Of a call of a thousand rows: two actors take six seconds for all, whatever the machine."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, int, str]:
    folder = tmp_path_factory.mktemp("undisturbed")
    prepare(folder, ROWS, pause=0.0)
    done = run(folder)
    assert done.code == 0, done.said
    assert dead(folder) == [*range(500, ROWS, 1000)]
    return content(folder)


@pytest.mark.parametrize(
    ("kill", "files"),
    [("driver", MANY), ("driver", 1), ("raylet", MANY), ("after the commit", 1)],
)
def test_after_a_kill_a_rerun_ends_with_every_row_once(
    tmp_path: Path, undisturbed: tuple[int, int, str], kill: str, files: int
) -> None:
    prepare(tmp_path, ROWS, files, PAUSE)
    killed = run(tmp_path, kill, 0.3)
    assert killed.was_killed
    assert killed.code != 0
    again = run(tmp_path)
    assert again.code == 0, again.said
    assert again.resumed is not None
    if kill != "after the commit":
        assert killed.written <= again.resumed < ROWS
    assert content(tmp_path) == undisturbed
    assert dead(tmp_path) == [*range(500, ROWS, 1000)]
    assert leftovers(tmp_path) == []


def test_a_killed_actor_is_replaced_within_the_run(
    tmp_path: Path, undisturbed: tuple[int, int, str]
) -> None:
    prepare(tmp_path, ROWS, pause=PAUSE)
    done = run(tmp_path, "actor", 0.01)
    assert done.was_killed
    assert done.code == 0, done.said
    assert content(tmp_path) == undisturbed
