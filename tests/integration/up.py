"""Everything up, with two versions of a model whose answers tell which one it is."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.flows.services import control
from millrace.flows.settings import Settings
from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.inference.model_input import FEATURES
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.release.ledger import ledger_of
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from millrace.tasks.release import ReleaseCheck
from tests.integration.backends import kill_backends
from tests.integration.planted import GOLDEN, good, plant, softmax, weights_of
from tests.integration.ports import service_ports

NAME = "moved"
SEEDS = {1: 0, 2: 1}
"""Of the weights of each version."""
FREE = {"promotion": {"require": {"max_metric_drop": None}}}


@dataclass
class Up:
    """All services of a home, and two versions of a model."""

    settings: Settings

    @property
    def installation(self) -> Installation:
        return self.settings.installation()

    def move(self, version: int, model: str = NAME) -> None:
        """Do what a click on the alias in the MLflow UI does."""
        client(self.installation.tracking_uri).set_registered_model_alias(
            model, CHAMPION, str(version)
        )

    @property
    def repository(self) -> Repository:
        return Repository(self.installation.model_repository, self.installation.staging)

    def is_in_a_release(self, model: str = NAME) -> bool:
        with self.repository.exclusive(model, wait=False) as nobody_else:
            return not nobody_else

    def answers(self) -> int | None:
        """Return the version whose weights a client's request is answered with."""
        with TritonClient(self.installation.triton[0]) as triton:
            try:
                got = triton.predict(NAME, {FEATURES: GOLDEN})["probabilities"]
            except MillraceError:
                return None
        for version, seed in SEEDS.items():
            if np.allclose(got, softmax(GOLDEN @ weights_of(seed)), atol=1e-5):
                return version
        raise AssertionError("an answer of no version")

    def seconds_until(self, version: int, at_most: float) -> float:
        began = time.monotonic()
        while self.answers() != version:
            assert time.monotonic() - began < at_most, f"not within {at_most} s"
            time.sleep(0.05)
        return time.monotonic() - began

    def end_state(self) -> dict[str, object]:
        """Return what is live, what the versions' tags say of it, and the last event."""
        told = ("millrace.status", "millrace.reason", "millrace.replicas", "millrace.endpoint")
        store = client(self.installation.tracking_uri)
        tags = {v: store.get_model_version(NAME, str(v)).tags for v in SEEDS}
        last = ledger_of(self.installation).releases(NAME)[-1]
        return {
            "live": self.answers(),
            "tags": {v: {k: each[k] for k in told if k in each} for v, each in tags.items()},
            "last": (last.kind, last.version, last.previous),
        }

    def until_settled(self, version: int, at_most: float) -> dict[str, object]:
        """Wait until nothing is due and a version is said to be live; return the end state."""
        deadline, lookout = time.monotonic() + at_most, ReleaseCheck(lambda: self.installation)
        while True:
            with suppress(Exception):  # MLflow may be away
                free = not self.is_in_a_release()
                due = lookout.due()
                if free and not (due or self.is_in_a_release()) and self.answers() == version:
                    return self.end_state()
            assert time.monotonic() < deadline, f"not settled within {at_most} s"
            time.sleep(0.2)

    def asked_by(self) -> list[str]:
        """Return who asked for each version that went live, when no release is under way."""
        with self.repository.exclusive(NAME):
            events = ledger_of(self.installation).releases(NAME)
        return [each.asked_by for each in events if each.kind == "live"]

    def kill_triton(self) -> None:
        os.kill(self.pid("triton"), signal.SIGKILL)

    def kill_guard(self) -> None:
        os.kill(self.pid("guard"), signal.SIGKILL)

    def kill_mlflow(self) -> None:
        """Kill the server and its workers, which it starts itself."""
        os.killpg(self.pid("mlflow"), signal.SIGKILL)

    def kill_backend(self) -> None:
        """Kill the process in which Triton runs the model."""
        assert kill_backends(f"{self.installation.model_repository}/{NAME}/") > 0

    def pid(self, name: str) -> int:
        found = next(each for each in control.status(self.settings).services if each.name == name)
        assert found.pid is not None
        return found.pid


@contextmanager
def all_up(home: Path) -> Iterator[Up]:
    """Start everything on free ports, with version 1 live; stop it in the end."""
    chosen = Settings(home=home, pipelines=(), **service_ports())
    try:
        control.up(chosen)
        found = Up(chosen)
        for seed in SEEDS.values():
            plant(found.installation, NAME, good(seed, pipeline=FREE))
        found.move(1)
        found.seconds_until(1, 90)
        yield found
    finally:
        control.down(chosen)
