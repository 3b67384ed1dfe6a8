"""What the owner of the replicas and its helpers tell one another by files."""

from pathlib import Path

import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.replicas import files
from millrace.serving.replicas.files import Fleet, RunningReplica, Wanted

GUARD = Endpoint("127.0.0.1", 8000, 8001, 8002, token="t")


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path, "", "", triton=(GUARD,)).prepared()


def told(installation: Installation, *states: str, fault: str = "", port: int = 8001) -> list:
    replicas = tuple(RunningReplica(n, 10 + n, state) for n, state in enumerate(states, 1))
    files.write_fleet(installation.run, Fleet(port, len(states), replicas, fault))
    return [each.replica for each in files.servers_of(installation)]


def test_a_single_triton_is_told_at_its_one_address(installation: Installation) -> None:
    assert files.servers_of(installation) == (GUARD,)


def test_who_loads_is_told_of_releases_and_who_drains_is_not(installation: Installation) -> None:
    assert told(installation, "serving", "loading", "draining", "stopping") == [1, 2]


def test_who_is_away_for_a_moment_counts_and_who_cannot_start_does_not(
    installation: Installation,
) -> None:
    assert told(installation, "serving", "stopped") == [1, 2]
    assert told(installation, "serving", "stopped", fault="no memory") == [1]


def test_the_file_of_another_server_says_nothing(installation: Installation) -> None:
    assert told(installation, "serving", "serving", port=9001) == [None]


def test_servers_elsewhere_are_told_as_configured(tmp_path: Path) -> None:
    installation = Installation(tmp_path, "", "", triton=(Endpoint("other"),)).prepared()
    assert told(installation, "serving") == [None]


def test_a_new_up_forgets_what_the_last_one_ran(installation: Installation) -> None:
    run = installation.run
    files.write_wanted(run, Wanted(3, "load"))
    files.mark_ready(run, 2, 17)
    assert files.read_ready(run, 2) == 17
    files.write_bounds(run, ReplicasSpec(min=1, max=3))
    assert files.read_wanted(run) is None
    assert files.read_ready(run, 2) is None
    assert files.read_bounds(run).max == 3
    files.forget_bounds(run)
    assert files.read_bounds(run) == ReplicasSpec()


def test_a_damaged_file_counts_as_none(installation: Installation) -> None:
    (installation.run / "replicas.wanted.json").write_text('{"replicas": "many"}')
    (installation.run / "replica-1.ready").write_text("x")
    assert files.read_wanted(installation.run) is None
    assert files.read_ready(installation.run, 1) is None


def test_bytes_that_cannot_be_read_are_overwritten(installation: Installation) -> None:
    (installation.run / "replicas.wanted.json").write_bytes(b"\xff\xfe 3")
    assert files.read_wanted(installation.run) is None
    files.write_wanted(installation.run, Wanted(2, "load"))
    assert files.read_wanted(installation.run) == Wanted(2, "load")


def test_a_folder_in_place_of_a_file_is_named_and_stays(installation: Installation) -> None:
    run = installation.run
    assert files.fault_of_files(run) == ""
    for name in ("replicas.wanted.json", "replica-1.ready"):
        (run / name).mkdir()
    files.forget_bounds(run)
    files.unmark_ready(run, 1)
    assert files.read_wanted(run) is None
    with pytest.raises(WorkError, match=r"replicas\.wanted\.json is a folder"):
        files.write_wanted(run, Wanted(2, "load"))
    assert "replicas.wanted.json is a folder" in files.fault_of_files(run)
