"""What people and disks do to a release: the version that serves goes on, and rightly."""

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from millrace.models.common import subprocess_runner
from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Installation
from millrace.models.inference.features import FEATURES
from millrace.serving.release import apply
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.reconcile import reconcile
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_folder import ONNX
from tests.integration.file_registry import FileRegistry
from tests.integration.planted import GOLDEN, classifier, softmax, weights_of
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

NAMES = (f"m{number}" for number in count())


class Served:
    """A server, and one model of its own: versions 1, 2, … have the weights of that seed."""

    def __init__(self, client: TritonClient, installation: Installation, folder: Path) -> None:
        self.client, self.name = client, next(NAMES)
        self.registry, self.ledger = FileRegistry(folder), Ledger(str(folder / "releases"))
        self.repository = Repository(installation.model_repository, installation.staging)

    def register(self, version: int) -> None:
        model = classifier(weights_of(version))
        self.registry.register(self.name, version, model, {FEATURES: GOLDEN})

    def remove(self) -> None:
        self.client.unload(self.name)
        self.repository.remove_model(self.name)

    def release(self, champion: int | None = None) -> Outcome:
        if champion is not None:
            self.registry.champions[self.name] = champion
        done = reconcile(
            self.registry, self.ledger, self.repository, (self.client.endpoint,), Request("a test")
        )
        return next(each for each in done if each.model == self.name)

    def answers(self) -> int:
        got = self.client.predict(self.name, {FEATURES: GOLDEN})["probabilities"]
        versions = [
            v for v in range(10) if np.allclose(got, softmax(GOLDEN @ weights_of(v)), atol=1e-5)
        ]
        return versions[0]

    def status(self, version: int) -> str:
        return self.registry.written.get((self.name, version), {}).get("millrace.status", "")

    def events(self) -> list[tuple[str, int]]:
        """Return what happened, but for the proofs on the way."""
        events = self.ledger.releases(self.name)
        return [(each.kind, each.version) for each in events if each.kind != "proved"]


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[TritonClient, Installation]]:
    installation = Installation(tmp_path_factory.mktemp("home"), "", "").prepared()
    with server.running(installation, free_endpoint()) as client:
        yield client, installation


@pytest.fixture
def served(running: tuple[TritonClient, Installation], tmp_path: Path) -> Iterator[Served]:
    """Version 1 is live, version 2 is registered."""
    found = Served(*running, tmp_path)
    found.register(1)
    found.register(2)
    found.release(1)
    assert (found.answers(), found.status(1)) == (1, "live")
    yield found
    found.remove()


def replace_file(served: Served, version: int, seed: int) -> None:
    path = served.repository.artifact(served.name, version).files[ONNX]
    path.chmod(0o640)
    path.write_bytes(classifier(weights_of(seed)))


def test_a_refused_version_that_is_deleted_takes_nothing_with_it(served: Served) -> None:
    served.registry.refuses[served.name, 2] = "it is bad"
    served.release(2)
    del served.registry.champions[served.name]  # MLflow drops the alias of a deleted version
    for _ in range(2):
        served.registry.champions.pop(served.name, None)
        reconcile(
            served.registry,
            served.ledger,
            served.repository,
            (served.client.endpoint,),
            Request("a test"),
        )
    assert served.answers() == 1
    assert served.events()[-1] == ("left", 2)


def test_a_lost_release_table_unloads_nothing(served: Served, tmp_path: Path) -> None:
    served.registry.refuses[served.name, 2] = "it is bad"
    served.release(2)
    served.ledger = Ledger(str(tmp_path / "another"))
    served.release()
    assert (served.answers(), served.status(1), served.status(2)) == (1, "live", "refused")
    assert served.events() == [("live", 1), ("refused", 2)]


def test_without_the_registry_a_server_gets_back_what_was_live(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: object, model: str | None = None) -> None:
        raise TransientError("MLflow cannot be reached")

    served.client.unload(served.name)
    with monkeypatch.context() as patched:
        patched.setattr(FileRegistry, "desired_versions", away)
        with pytest.raises(TransientError, match="MLflow cannot be reached"):
            served.release()
    assert served.answers() == 1
    assert served.release().error is None


def test_a_file_that_was_replaced_on_disk_is_staged_again_before_it_is_loaded(
    served: Served,
) -> None:
    served.release(2)
    served.release(1)
    replace_file(served, 2, seed=7)
    served.release(2)
    assert served.answers() == 2
    replace_file(served, 2, seed=7)
    served.client.unload(served.name)
    served.release()
    assert served.answers() == 2


def test_a_damaged_folder_is_staged_again_and_stops_no_other_model(
    served: Served, running: tuple[TritonClient, Installation], tmp_path: Path
) -> None:
    (served.repository.root / served.name / "1" / "version.json").chmod(0o640)
    (served.repository.root / served.name / "1" / "version.json").write_text("{")
    (served.repository.root / served.name / "config.pbtxt").write_text('name: "')
    other = Served(*running, tmp_path)
    other.registry, other.ledger = served.registry, served.ledger
    other.register(3)
    assert other.release(3).error is None
    assert other.answers() == 3
    served.client.unload(served.name)
    assert served.release().error is None
    assert served.answers() == 1
    other.remove()


def test_an_alias_that_moves_back_during_the_proof_gives_the_version_no_traffic(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = apply.trial.validate_on_replica

    def moved_meanwhile(*arguments: object, **options: object) -> object:
        served.registry.champions[served.name] = 1
        return prove(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(apply.trial, "validate_on_replica", moved_meanwhile)
    served.release(2)
    assert served.events() == [("live", 1)]
    assert served.answers() == 1


def test_a_version_that_served_for_a_moment_is_in_the_table(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = apply.load_version

    def moved_meanwhile(*arguments: object, **options: object) -> None:
        load(*arguments, **options)  # type: ignore[arg-type]
        served.registry.champions[served.name] = 1

    monkeypatch.setattr(apply, "load_version", moved_meanwhile)
    served.release(2)
    assert served.events() == [("live", 1), ("live", 2), ("live", 1)]
    assert "moved during" in served.ledger.releases(served.name)[-1].asked_by
    assert served.answers() == 1


def test_a_live_version_must_answer_as_certified_by_its_served_name(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = apply.load_version

    def with_another_file(model: str, version: int, *arguments: object, **options: object) -> None:
        if version == 2:
            replace_file(served, 2, seed=7)
        load(model, version, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "load_version", with_another_file)
    assert "differ" in str(served.release(2).error)
    assert (served.answers(), served.status(2)) == (1, "refused")


def test_a_process_of_a_trial_that_is_killed_refuses_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = tmp_path / "killed.py"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess_runner.sys, "executable", str(killed))
        error = served.release(2).error
    assert error is not None
    assert error.transient
    assert served.events() == [("live", 1)]
    served.release()
    assert served.answers() == 2


def test_a_clock_that_was_set_back_changes_no_order(served: Served) -> None:
    from dataclasses import replace
    from datetime import timedelta

    last = served.ledger.releases(served.name)[-1]
    served.ledger.append(replace(last, id="later", at=last.at + timedelta(hours=1)))
    served.release(2)
    assert served.events() == [("live", 1), ("live", 1), ("live", 2)]
    assert (served.status(1), served.status(2)) == ("superseded", "live")


def test_a_look_that_fails_is_told_of_its_model_and_hides_no_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Observer.observe

    def failing(self: Observer, model: str | None = None) -> object:
        if model == served.name and served.answers() == 2:
            raise TransientError("the release table cannot be read")
        return look(self, model)

    with monkeypatch.context() as patched:
        patched.setattr(Observer, "observe", failing)
        outcome = served.release(2)
    assert outcome.changed
    assert "cannot be read" in str(outcome.error)
    assert served.release().error is None
    assert served.events()[-1] == ("live", 2)
