"""Two replicas of one model repository, one of which is away while a version is promoted."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.reconcile import reconcile
from millrace.serving.triton import server as triton
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from tests.integration.file_registry import FileRegistry
from tests.integration.planted import GOLDEN, classifier, weights_of
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


@dataclass
class Pair:
    """Two replicas, and what they are told from."""

    installation: Installation
    registry: FileRegistry
    first: Endpoint
    second: Endpoint
    missed: list[Endpoint] = field(default_factory=list)

    def release(self) -> tuple[Outcome, ...]:
        return reconcile(
            self.registry,
            Ledger(str(self.installation.home / "releases")),
            Repository(self.installation.model_repository, self.installation.staging),
            (self.first, self.second),
            Request("a test"),
            note_missed=self.missed.append,
        )

    def promote(self, version: int, **serving: object) -> tuple[Outcome, ...]:
        model = classifier(weights_of(version))
        self.registry.register("m", version, model, {"features": GOLDEN}, **serving)
        self.registry.champions["m"] = version
        return self.release()

    def status(self, version: int) -> tuple[str | None, str | None]:
        tags = self.registry.written.get(("m", version), {})
        return tags.get("millrace.status"), tags.get("millrace.replicas")


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    installation = Installation(tmp_path, "", "").prepared()
    return Pair(installation, FileRegistry(tmp_path), free_endpoint(), free_endpoint())


def live(endpoint: Endpoint) -> int | None:
    with TritonClient(endpoint) as client:
        return client.live_version("m")


def test_a_replica_that_was_away_catches_up_before_it_counts(pair: Pair) -> None:
    with triton.running(pair.installation, pair.first):
        with triton.running(pair.installation, pair.second):
            pair.promote(1)
            assert (live(pair.first), live(pair.second)) == (1, 1)
            assert pair.status(1) == ("live", "2 of 2")
        here, away = pair.promote(2)
        assert (here.changed, here.error) == (True, None)
        assert isinstance(away.error, TransientError)
        assert live(pair.first) == 2
        assert pair.status(2) == ("live", "1 of 2")
        with triton.running(pair.installation, pair.second):
            assert live(pair.second) is None
            here, back = pair.release()
            assert (here.changed, back.changed) == (False, True)
            assert live(pair.second) == 2
            assert pair.status(2) == ("live", "2 of 2")
            told = [event.kind for event in pair.registry.told if event.kind != "proved"]
            assert told == ["live", "live"]


def test_a_model_that_wants_all_replicas_waits_for_them(pair: Pair) -> None:
    with ExitStack() as stack:
        stack.enter_context(triton.running(pair.installation, pair.first))
        with triton.running(pair.installation, pair.second):
            pair.promote(1, quorum="all")
        pair.promote(2, quorum="all")
        assert live(pair.first) == 1
        assert pair.status(2)[0] == "staged"
        stack.enter_context(triton.running(pair.installation, pair.second))
        pair.release()
        assert (live(pair.first), live(pair.second)) == (2, 2)
        assert pair.status(2) == ("live", "2 of 2")
        assert pair.status(1)[0] == "superseded"


def test_a_replica_that_is_frozen_holds_the_other_up_only_for_a_moment(pair: Pair) -> None:
    with (
        triton.running(pair.installation, pair.first),
        triton.running(pair.installation, pair.second),
    ):
        pair.promote(1)
        server = serving_at(pair.second)
        server.suspend()
        try:
            here, frozen = pair.promote(2)
        finally:
            server.resume()
        assert (here.changed, here.error) == (True, None)
        assert isinstance(frozen.error, TransientError)
        assert live(pair.first) == 2
        assert pair.status(2) == ("live", "1 of 2")
        assert pair.missed == [pair.second]
        pair.release()
        assert live(pair.second) == 2
        assert pair.status(2) == ("live", "2 of 2")
        assert pair.missed == [pair.second]


def serving_at(endpoint: Endpoint) -> psutil.Process:
    ports = f"--grpc-port={endpoint.grpc_port}"
    every = psutil.process_iter(["cmdline"])
    found = [each for each in every if ports in (each.info["cmdline"] or ())]  # None: just gone
    assert len(found) == 1
    return found[0]
