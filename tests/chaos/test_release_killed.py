"""A release that is killed at any moment, and finished by the next one."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.chaos.killed_release import MOMENTS
from tests.integration.asked import Asking, Line, nothing_of_a_trial_is_left
from tests.integration.planted import Planted, good, ingest_rows, plant

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NAMES = (f"killed{number}" for number in count())
FORWARD = ("stage", "verify", "validate", "proved", "switch", "live", "tag", "tag")
BACK = ("switch", "live", "tag", "tag")


@pytest.fixture
def versions(line: Line) -> tuple[Planted, Planted]:
    """A model of its own: version 1 is live, version 2 is registered."""
    name = next(NAMES)
    ingest_rows(line.installation, name)
    first, second = plant(line.installation, name, good(0)), plant(line.installation, name, good(0))
    line.promote(first)
    line.release()
    assert line.client.live_version(name) == 1
    return first, second


@pytest.fixture(scope="module")
def kill_at(line: Line) -> Iterator[Callable[[object], None]]:
    """Releases, and is killed at a moment."""
    endpoint = line.client.endpoint
    ports = (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)
    words = (line.installation.home, *ports, endpoint.token)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.killed_release", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "0"},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, told = process.stdin, process.stdout

        def kill(moment: object) -> None:
            given.write(f"{moment}\n")
            given.flush()
            if not select.select([told], [], [], 120)[0]:
                process.kill()  # a late answer would be taken for that of the next moment
            assert told.readline() == "-9\n"

        try:
            yield kill
        finally:
            process.kill()


def end_state(line: Line, first: Planted, second: Planted) -> dict[str, object]:
    kept = ("millrace.status", "millrace.reason", "millrace.replicas", "millrace.endpoint")
    return {
        "live": line.client.live_version(first.name),
        "tags": [
            {key: value for key, value in line.tags(each).items() if key in kept}
            for each in (first, second)
        ],
        "events": [(e.kind, e.version, e.previous) for e in line.releases(first.name)],
        "measured": ["p99_ms" in event.evidence for event in line.releases(first.name)],
        "swept": nothing_of_a_trial_is_left(line),
    }


@pytest.mark.parametrize("moment", [*range(1, len(FORWARD) + 1), *MOMENTS])
def test_a_promotion_that_is_killed_is_finished_by_the_next_release(
    line: Line,
    versions: tuple[Planted, Planted],
    moment: object,
    kill_at: Callable[[object], None],
) -> None:
    first, second = versions
    line.promote(second)
    with Asking(line, first.name, 0) as asking:
        kill_at(moment)
        line.release()
    assert asking.asked > 0
    assert asking.wrong == []
    assert end_state(line, first, second) == {
        "live": 2,
        "tags": [
            {"millrace.status": "superseded", "millrace.reason": "version 2 took its place"},
            {
                "millrace.status": "live",
                "millrace.replicas": "1 of 1",
                "millrace.endpoint": line.client.endpoint.grpc,
            },
        ],
        "events": [("proved", 1, None), ("live", 1, None), ("proved", 2, 1), ("live", 2, 1)],
        "measured": [True] * 4,
        "swept": True,
    }


@pytest.mark.parametrize("moment", range(1, len(BACK) + 1))
def test_a_rollback_that_is_killed_is_finished_by_the_next_release(
    line: Line,
    versions: tuple[Planted, Planted],
    moment: int,
    kill_at: Callable[[object], None],
) -> None:
    first, second = versions
    line.promote(second)
    line.release()
    line.promote(first)
    with Asking(line, first.name, 0) as asking:
        kill_at(moment)
        line.release()
    assert asking.wrong == []
    found = end_state(line, first, second)
    assert found["live"] == 1
    assert found["events"][-3:] == [("proved", 2, 1), ("live", 2, 1), ("live", 1, 2)]  # type: ignore[index]
    assert [tags["millrace.status"] for tags in found["tags"]] == ["live", "superseded"]  # type: ignore[index,attr-defined]
