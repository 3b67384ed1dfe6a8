"""Rollouts of a new version by the release itself, under load: an equal one, and worse ones."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from millrace.models.common.installation import Installation
from millrace.models.config.rollout_spec import JudgeSpec, RolloutSpec
from millrace.models.inference.features import FEATURES
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.reconcile import reconcile
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import ready_versions
from tests.integration.backends import kill_backends
from tests.integration.file_registry import FileRegistry
from tests.integration.planted import GOLDEN, WIDTH, classifier, weights_of
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

ROWS = np.random.default_rng(3).normal(size=(4096, WIDTH)).astype(np.float32)
CANARY = RolloutSpec(
    kind="canary",
    steps=(50,),
    hold_s=10,
    compare_percent=50,
    judge=JudgeSpec(max_slowdown=1.8, min_agreement=0.97, max_failures=0.03),
)
SHADOW = CANARY.model_copy(update={"kind": "shadow"})

GOAL = CANARY.model_copy(
    update={"judge": CANARY.judge.model_copy(update={"max_slowdown": 1000, "p99_ms": 1.0})}
)


class Served:
    """A server, and a registry of files beside it."""

    def __init__(self, client: TritonClient, installation: Installation) -> None:
        self.client, self.installation, self.registry = (
            client,
            installation,
            FileRegistry(installation.home),
        )
        self.ledger = Ledger(str(installation.home / "releases"))

    def promote(self, name: str, version: int, model: bytes, spec: RolloutSpec) -> None:
        self.registry.register(name, version, model, {FEATURES: GOLDEN})
        self.registry.rollouts[name, version] = spec
        self.registry.champions[name] = version
        self.release()

    def release(self) -> None:
        reconcile(
            self.registry,
            self.ledger,
            Repository(self.installation.model_repository, self.installation.staging),
            (self.client.endpoint,),
            Request("a test"),
        )

    def status(self, name: str, version: int) -> tuple[str, str]:
        tags = self.registry.written.get((name, version), {})
        return tags.get("millrace.status", ""), tags.get("millrace.reason", "")

    def until_decided(self, name: str, version: int, seconds: float = 60) -> str:
        deadline = time.monotonic() + seconds
        while self.status(name, version)[0] not in ("live", "refused"):
            assert time.monotonic() < deadline, self.status(name, version)
            time.sleep(0.5)
            self.release()
        return self.status(name, version)[0]

    def until_swept(self, name: str, seconds: float = 30) -> bool:
        folder = self.installation.model_repository / f"{name}.arms"
        deadline = time.monotonic() + seconds
        while folder.exists() and time.monotonic() < deadline:
            time.sleep(0.5)
            self.release()
        return not folder.exists()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    installation = Installation(tmp_path_factory.mktemp("home"), "", "").prepared()
    with server.running(installation, free_endpoint()) as client:
        yield Served(client, installation)


@contextmanager
def asking(served: Served, name: str) -> Iterator[list[Exception]]:
    """Send requests of eight rows for the length of the block, and collect what failed."""
    stop, failed = threading.Event(), []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        while not stop.is_set():
            rows = ROWS[rng.integers(0, len(ROWS), 8)]
            try:
                served.client.predict(name, {FEATURES: rows})
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield failed
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def otherwise(share: float) -> np.ndarray:
    """Return weights near those of seed 0 that answer about this share of rows otherwise."""
    right = (ROWS @ weights_of(0)).argmax(axis=1)
    noise = weights_of(9)
    low, high = 0.0, 4.0
    for _ in range(30):
        middle = (low + high) / 2
        differ = ((ROWS @ (weights_of(0) + middle * noise)).argmax(axis=1) != right).mean()
        low, high = (middle, high) if differ < share else (low, middle)
    return (weights_of(0) + high * noise).astype(np.float32)


def slow() -> bytes:
    """The model of seed 0 with a matrix product before it, ten times what a request takes else."""
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["ones"]),
        helper.make_node("ReduceSum", [FEATURES], ["total"], keepdims=0),
        helper.make_node("Mul", ["ones", "total"], ["many"]),
        helper.make_node("MatMul", ["many", "ones"], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["nothing"], keepdims=0),
        helper.make_node("Add", [FEATURES, "nothing"], ["seen"]),
    ]
    return classifier(weights_of(0), before=nodes, extra={"shape": np.array([700, 700])})


@pytest.mark.parametrize(
    ("spec", "kind", "end"),
    [
        pytest.param(CANARY, "equal", "live", id="canary-equal"),
        pytest.param(CANARY, "otherwise", "refused", id="canary-otherwise"),
        pytest.param(CANARY, "slow", "refused", id="canary-slow", marks=pytest.mark.chaos),
        pytest.param(SHADOW, "equal", "live", id="shadow-equal", marks=pytest.mark.slow),
        pytest.param(
            SHADOW, "otherwise", "refused", id="shadow-otherwise", marks=pytest.mark.chaos
        ),
        pytest.param(SHADOW, "slow", "refused", id="shadow-slow", marks=pytest.mark.chaos),
        pytest.param(GOAL, "slow", "refused", id="goal-slow", marks=pytest.mark.chaos),
    ],
)
def test_a_rollout_ends_as_the_candidate_deserves(
    served: Served, spec: RolloutSpec, kind: str, end: str
) -> None:
    name = f"{spec.kind}-{kind}{'-goal' * (spec is GOAL)}"
    model = {
        "equal": classifier(weights_of(0)),
        "otherwise": classifier(otherwise(0.08)),
        "slow": slow(),
    }[kind]
    served.promote(name, 1, classifier(weights_of(0)), RolloutSpec())
    with asking(served, name) as failed:
        served.promote(name, 2, model, spec)
        status, reason = served.status(name, 2)
        if status == "staged":  # a bad one may be found out before the first release is over
            assert "beside version 1" in reason
            assert served.client.live_version(name) == 1
        assert served.until_decided(name, 2) == end, served.status(name, 2)
    assert failed == []
    assert served.client.live_version(name) == (2 if end == "live" else 1)
    assert ready_versions(served.client.index(), f"{name}.arms") == ()
    assert served.until_swept(name)
    if end == "refused":
        assert served.status(name, 1)[0] == "live"


def test_a_rollout_whose_alias_goes_back_ends_at_once(served: Served) -> None:
    served.promote("changed", 1, classifier(weights_of(0)), RolloutSpec())
    with asking(served, "changed") as failed:
        served.promote("changed", 2, classifier(weights_of(1)), CANARY)
        served.registry.champions["changed"] = 1
        served.release()
    assert failed == []
    assert served.client.live_version("changed") == 1
    assert ready_versions(served.client.index(), "changed.arms") == ()


@pytest.mark.chaos
@pytest.mark.parametrize("part", ["{name}/", "{name}.arms/1"], ids=["splitter", "champion"])
def test_a_process_of_a_rollout_that_is_killed_is_replaced(served: Served, part: str) -> None:
    name = "without-" + ("champion" if "arms" in part else "splitter")
    served.promote(name, 1, classifier(weights_of(0)), RolloutSpec())
    served.promote(name, 2, classifier(weights_of(0)), CANARY)
    assert kill_backends(f"{served.installation.model_repository}/{part.format(name=name)}") > 0
    served.release()
    with asking(served, name) as failed:
        assert served.until_decided(name, 2) == "live", served.status(name, 2)
    assert failed == []
    assert ready_versions(served.client.index(), f"{name}.arms") == ()


def test_a_rollout_without_traffic_is_no_promotion(served: Served, tmp_path: Path) -> None:
    short = CANARY.model_copy(update={"hold_s": 2.0})
    served.promote("silent", 1, classifier(weights_of(0)), RolloutSpec())
    served.promote("silent", 2, classifier(weights_of(0)), short)
    assert served.until_decided("silent", 2) == "refused"
    assert "inconclusive" in served.status("silent", 2)[1]
