"""What makes a release happen, with everything up: the webhook at once, the schedule anyway."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from flows import control
from flows.settings import Settings
from models.errors import MillraceError
from models.features import FEATURES
from models.places import Places
from models.registry import CHAMPION
from models.tracking import client
from serving.client import TritonClient
from serving.ledger import ledger_of
from serving.repository import Repository
from tests.integration.planted import GOLDEN, good, plant, softmax, weights_of
from tests.integration.ports import free_ports

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.timeout(600),
]

NAME = "moved"
SEEDS = {1: 0, 2: 1}
"""Of the weights of each version."""
FREE = {"promotion": {"require": {"max_metric_drop": None}}}


@dataclass
class Up:
    """All services of a home, and two versions of a model."""

    settings: Settings

    @property
    def places(self) -> Places:
        return self.settings.places()

    def move(self, version: int) -> None:
        """Do what a click on the alias in the MLflow UI does."""
        client(self.places.tracking_uri).set_registered_model_alias(NAME, CHAMPION, str(version))

    def answers(self) -> int | None:
        """Return the version whose weights a client's request is answered with."""
        with TritonClient(self.places.triton[0]) as triton:
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

    def asked_by(self) -> list[str]:
        """Return who asked for each version that went live, when no release is under way."""
        with Repository(self.places.model_repository, self.places.staging).exclusive():
            events = ledger_of(self.places).releases(NAME)
        return [each.asked_by for each in events if each.kind == "live"]

    def pid(self, name: str) -> int:
        found = next(each for each in control.status(self.settings).services if each.name == name)
        assert found.pid is not None
        return found.pid


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("triggers") / "home"
    names = ("mlflow", "prefect", "webhook", "triton_http", "triton_grpc", "triton_metrics")
    ports = {f"{name}_port": port for name, port in zip(names, free_ports(6), strict=True)}
    chosen = Settings(home=home, pipelines=(), **ports)
    try:
        control.up(chosen)
        found = Up(chosen)
        for seed in SEEDS.values():
            plant(found.places, NAME, good(seed, pipeline=FREE))
        found.move(1)
        found.seconds_until(1, 90)
        yield found
    finally:
        control.down(chosen)


def test_a_click_in_mlflow_changes_what_clients_get_within_ten_seconds(up: Up) -> None:
    for version in (2, 1):
        up.move(version)
        assert up.seconds_until(version, 30) < 10
    # The schedule may have come first, but for one of them only.
    assert any(f"webhook: champion of {NAME}" in asked for asked in up.asked_by()[-2:])


def test_twelve_moves_in_a_row_end_in_the_last_one(up: Up) -> None:
    for move in range(12):
        up.move(1 + move % 2)
    up.seconds_until(2, 30)
    time.sleep(2.0)
    up.asked_by()
    assert up.answers() == 2


def test_with_the_receiver_deaf_the_schedule_releases(up: Up) -> None:
    up.asked_by()  # it must not be stopped in the middle of a release, which holds the lock
    receiver = up.pid("webhook")
    os.kill(receiver, signal.SIGSTOP)
    try:
        up.move(1)
        up.seconds_until(1, 120)
    finally:
        os.kill(receiver, signal.SIGCONT)
    assert up.asked_by()[-1] == "schedule"


def test_a_receiver_that_was_killed_comes_back_and_catches_up(up: Up) -> None:
    os.kill(up.pid("webhook"), signal.SIGKILL)
    up.move(2)
    up.seconds_until(2, 120)
    up.move(1)
    up.seconds_until(1, 60)
