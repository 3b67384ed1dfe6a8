"""Several Tritons and their guard under a supervisor, with releases from a registry of files."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from millrace.flows.services.service_specs import local_services
from millrace.flows.services.supervisor import Supervisor
from millrace.flows.settings import Settings
from millrace.flows.triggers.replica_joiner import ReplicaJoiner
from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.release.apply import Request
from millrace.serving.release.joining import look_at
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome
from millrace.serving.release.reconcile import reconcile
from millrace.serving.replicas import files
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from tests.integration.file_registry import FileRegistry
from tests.integration.planted import GOLDEN, classifier, softmax, weights_of
from tests.integration.ports import service_ports

NAME = "m"


@dataclass
class Answers:
    """What clients got: the version of each answer, and what failed."""

    versions: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    longest: float = 0.0


@dataclass
class ReplicaStand:
    """The replicas, and the registry from which they are told."""

    settings: Settings
    registry: FileRegistry
    installation: Installation
    expected: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def guard(self) -> Endpoint:
        return self.installation.triton[0]

    @property
    def observer(self) -> Observer:
        repository = Repository(self.installation.model_repository, self.installation.staging)
        servers = partial(files.servers_of, self.installation)
        ledger = Ledger(str(self.installation.home / "releases"))
        return Observer(self.registry, ledger, repository, servers)

    def release(self) -> tuple[Outcome, ...]:
        seen = self.observer
        return reconcile(
            *(seen.registry, seen.ledger, seen.repository, seen.endpoints, Request("a test")),
            note_missed=lambda each: files.unmark_ready(self.installation.run, each.replica or 0),
        )

    def promote(self, version: int, **serving: object) -> tuple[Outcome, ...]:
        weights = weights_of(version)
        self.expected[version] = softmax(GOLDEN @ weights)
        inputs = {"features": GOLDEN}
        self.registry.register(NAME, version, classifier(weights), inputs, **serving)
        self.registry.champions[NAME] = version
        return self.release()

    def want(self, replicas: int) -> None:
        files.write_wanted(self.installation.run, files.Wanted(replicas, "a test"))

    def states(self) -> dict[int, str]:
        fleet = files.read_fleet(self.installation.run)
        return {each.number: each.state for each in fleet.replicas} if fleet else {}

    def pid(self, number: int) -> int:
        fleet = files.read_fleet(self.installation.run)
        assert fleet is not None
        (pid,) = (each.pid for each in fleet.replicas if each.number == number)
        assert pid is not None
        return pid

    def kill(self, number: int) -> None:
        os.kill(self.pid(number), signal.SIGKILL)

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, (self.states(), seconds)
            time.sleep(0.05)
        return time.monotonic() - began

    def until_serving(self, count: int, seconds: float = 60.0) -> float:
        wanted = dict.fromkeys(range(1, count + 1), "serving")
        return self.until(lambda: self.states() == wanted, seconds)

    def live(self, number: int) -> int | None:
        with TritonClient(replica_endpoint(self.guard, number)) as client:
            return client.live_version(NAME)

    def version_of(self, probabilities: np.ndarray) -> int:
        known = self.expected.items()
        return next(v for v, each in known if np.allclose(each, probabilities, atol=1e-5))

    @contextmanager
    def clients(self, count: int, pause: float = 0.002) -> Iterator[Answers]:
        """Let clients ask through the guard for the length of the block."""
        found, stop = Answers(), threading.Event()

        def ask() -> None:
            with TritonClient(self.guard) as client:
                while not stop.wait(pause):
                    began = time.monotonic()
                    try:
                        got = client.predict(NAME, {"features": GOLDEN})["probabilities"]
                        found.versions.append(self.version_of(got))
                    except MillraceError as error:
                        found.failed.append(str(error.seen))
                    found.longest = max(found.longest, time.monotonic() - began)

        threads = [threading.Thread(target=ask) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            yield found
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@contextmanager
def replica_stand(home: Path, bounds: ReplicasSpec) -> Iterator[ReplicaStand]:
    """Start the replicas, their guard, and what lets them get requests."""
    settings = Settings(home=home, pipelines=(), **service_ports())
    installation = settings.installation().prepared()
    files.write_bounds(installation.run, bounds)
    services = tuple(
        each for each in local_services(settings) if each.replica or each.name == "guard"
    )
    supervisor = Supervisor(settings, services)
    stand = ReplicaStand(settings, FileRegistry(home), settings.installation())

    def look(number: int) -> str:
        return look_at(stand.observer, replica_endpoint(stand.guard, number))

    def request(reason: str) -> None:
        threading.Thread(target=stand.release).start()

    joiner = ReplicaJoiner(installation.run, look, request)
    running = threading.Thread(target=supervisor.run)
    running.start()
    joiner.start()
    try:
        yield stand
    finally:
        joiner.stop()
        supervisor.stop()
        running.join()
        files.forget_bounds(installation.run)
