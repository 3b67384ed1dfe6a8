"""What the owner of the replicas starts, ends and tells the guard."""

import json
from pathlib import Path

import pytest

from millrace.flows.services import replica_owner
from millrace.flows.services.replica_owner import ReplicaOwner
from millrace.flows.services.service_specs import Service
from millrace.flows.services.supervisor import Supervisor
from millrace.flows.settings import Settings
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import endpoints_file
from millrace.serving.replicas import files
from millrace.serving.replicas.fleet import DRAIN_SECONDS

BOUNDS = ReplicasSpec(min=1, max=3)


class Clock:
    """A clock that stands still until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(home=tmp_path)
    found.installation().prepared()
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def owner(settings: Settings, clock: Clock) -> ReplicaOwner:
    return ReplicaOwner(settings, BOUNDS, clock)


def listed(settings: Settings, status: str = "HEALTHY") -> list[str]:
    file = settings.home / endpoints_file(settings.local_triton, "grpc")
    hosts = json.loads(file.read_text())["resources"][0]["endpoints"][0]["lb_endpoints"]
    paths = [each["endpoint"]["address"]["pipe"]["path"] for each in hosts]
    return [p for p, each in zip(paths, hosts, strict=True) if each["health_status"] == status]


def test_before_anything_runs_the_guard_has_an_empty_list(
    owner: ReplicaOwner, settings: Settings
) -> None:
    assert listed(settings) == []


def test_a_replica_is_listed_when_it_is_ready_and_not_after_its_death(
    owner: ReplicaOwner, settings: Settings
) -> None:
    owner.step({1: 11, 2: None, 3: None})
    assert listed(settings) == []
    files.mark_ready(settings.run, 1, 11)
    owner.step({1: 11, 2: None, 3: None})
    assert listed(settings) == ["run/triton-8001.grpc:8001"]
    owner.step({1: None, 2: None, 3: None})
    assert listed(settings) == []
    owner.step({1: 19, 2: None, 3: None})
    assert listed(settings) == []


def test_a_list_that_was_changed_by_hand_is_restored(
    owner: ReplicaOwner, settings: Settings
) -> None:
    files.mark_ready(settings.run, 1, 11)
    owner.step({1: 11, 2: None, 3: None})
    file = settings.home / endpoints_file(settings.local_triton, "grpc")
    right = file.read_text()
    for wrong in (right.replace("triton-8001.grpc", "another.grpc").encode(), b"\xff\xfe"):
        file.write_bytes(wrong)
        owner.step({1: 11, 2: None, 3: None})
        assert file.read_text() == right


def test_no_more_run_than_are_wanted_and_allowed(owner: ReplicaOwner, settings: Settings) -> None:
    assert [owner.may_start(number) for number in (1, 2, 3)] == [True, False, False]
    files.write_wanted(settings.run, files.Wanted(9, "by hand"))
    assert owner.wanted == 3
    files.write_wanted(settings.run, files.Wanted(0, "by hand"))
    assert owner.wanted == 1


NONSENSE = (b"", b"3", b'{"replicas": "many"}', b"\xff\xfe\x00", b"[" * 100_000)


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_nonsense_in_place_of_the_number_changes_nothing(
    owner: ReplicaOwner, settings: Settings, nonsense: bytes
) -> None:
    files.write_wanted(settings.run, files.Wanted(3, "load"))
    pids = {1: 11, 2: 12, 3: 13}
    owner.step(pids)
    (settings.run / "replicas.wanted.json").write_bytes(nonsense)
    (settings.run / "replicas.json").write_bytes(nonsense)
    owner.step(pids)
    fleet = files.read_fleet(settings.run)
    assert fleet is not None
    assert (owner.wanted, fleet.wanted, fleet.fault) == (3, 3, "")
    (settings.run / "replicas.wanted.json").unlink()
    assert owner.wanted == 3


def test_a_folder_in_place_of_a_list_is_named_and_ends_nothing(
    owner: ReplicaOwner, settings: Settings, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("replicas.json", "replica-1.ready"):
        (settings.run / name).unlink(missing_ok=True)
        (settings.run / name).mkdir()
    for _ in range(2):
        owner.step({1: 11, 2: None, 3: None})
    assert caplog.text.count("replicas.json is a folder") == 1
    assert "replicas.json is a folder" in owner.fault
    again = ReplicaOwner(settings, BOUNDS, clock)
    (settings.run / "replicas.json").rmdir()
    again.step({1: 11, 2: None, 3: None})
    assert again.fault == ""
    assert files.read_fleet(settings.run) is not None


def test_who_is_not_wanted_drains_and_then_ends(
    owner: ReplicaOwner, settings: Settings, clock: Clock
) -> None:
    files.write_wanted(settings.run, files.Wanted(2, "load"))
    for number, pid in ((1, 11), (2, 12)):
        files.mark_ready(settings.run, number, pid)
    pids = {1: 11, 2: 12, 3: None}
    assert owner.step(pids) == []
    files.write_wanted(settings.run, files.Wanted(1, "no load"))
    assert owner.step(pids) == []
    assert (len(listed(settings)), len(listed(settings, "DRAINING"))) == (1, 1)
    assert files.read_ready(settings.run, 2) is None
    clock.now += DRAIN_SECONDS  # no guard says what is in flight
    assert owner.step(pids) == [2]
    assert owner.step(pids) == []


def test_a_replica_that_does_not_fit_does_not_start_and_says_why(
    owner: ReplicaOwner, settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_wanted(settings.run, files.Wanted(2, "load"))
    owner.step({1: 11, 2: None, 3: None})
    monkeypatch.setattr(replica_owner, "memory_of", lambda pid: 2**60)
    assert not owner.may_start(2)
    owner.step({1: 11, 2: None, 3: None})
    fleet = files.read_fleet(settings.run)
    assert fleet is not None
    assert "does not fit" in fleet.fault
    monkeypatch.setattr(replica_owner, "memory_of", lambda pid: 1)
    assert not owner.may_start(2)
    clock.now += replica_owner.FIT_SECONDS
    assert owner.may_start(2)


def test_who_is_no_longer_wanted_need_not_fit(
    owner: ReplicaOwner, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_wanted(settings.run, files.Wanted(2, "load"))
    owner.step({1: 11, 2: None, 3: None})
    monkeypatch.setattr(replica_owner, "memory_of", lambda pid: 2**60)
    assert not owner.may_start(2)
    files.write_wanted(settings.run, files.Wanted(1, "no load"))
    owner.step({1: 11, 2: None, 3: None})
    assert owner.fault == ""


def test_the_supervisor_ends_who_has_drained_and_does_not_call_it_a_failure(
    settings: Settings, clock: Clock
) -> None:
    files.write_bounds(settings.run, ReplicasSpec(min=1, max=2))
    services = tuple(
        Service(f"triton-{n}", ("sleep", "60"), settings.home / f"{n}.log", replica=n)
        for n in (1, 2)
    )
    supervisor = Supervisor(settings, services, clock)
    first, second = supervisor.children

    def look() -> None:
        supervisor.update_replicas()
        for child in supervisor.children:
            supervisor.update(child)

    try:
        look()
        assert (first.process is None, second.process is None) == (False, True)
        files.write_wanted(settings.run, files.Wanted(2, "load"))
        look()
        assert second.process is not None
        files.write_wanted(settings.run, files.Wanted(1, "no load"))
        look()
        clock.now += DRAIN_SECONDS
        supervisor.update_replicas()
        second.process.wait(5)
        look()
        assert (second.process, second.record.restarts, second.failures) == (None, 0, 0)
        assert first.process is not None
    finally:
        supervisor.stop_all()
