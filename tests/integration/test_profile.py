"""A serving profile on a real Triton and a real registry: found, proved, required, served."""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from millrace.flows.cli.promotions import print_cards
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.inference.features import FEATURES
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.serving_profiles import FILE, GOAL_TAG, store_profile
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHALLENGER
from millrace.serving.guard.arrivals_table import read_arrivals
from millrace.serving.profile import batch_workload, measure, profiler, search
from millrace.serving.profile.batch_workload import BatchWorkload
from millrace.serving.profile.profiled_model import MODEL, own_triton, profiled_model
from millrace.serving.profile.proof import schedule_for
from millrace.serving.profile.record import Configuration, ServingProfile
from millrace.serving.profile.workload import Effort
from millrace.serving.release.outcome import raise_first_error
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.open_loop import OpenLoop, encode_request
from millrace.serving.triton.request_trace import TRACE_ENVIRONMENT
from millrace.serving.triton.version_config import PROFILE
from millrace.tasks.profile import Profiled, profile_unproved, profile_version
from millrace.tasks.promotion_cards import promotion_cards, write_card
from millrace.tasks.release import MlflowRegistry
from millrace.tasks.reports.promotion_card import HEADING
from tests.integration.asked import Asking, Line
from tests.integration.planted import GOLDEN, Planted, busy, good, ingest_rows, plant
from tests.integration.ports import free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

SHORT: dict[Any, dict[str, object]] = {
    BatchWorkload: {"effort": Effort(shortlist=1, probes=4, longest=0.5)},
    batch_workload: {"setups": lambda cores: [search.Setup(1, 1)]},
    search: {"BATCH_SIZES": (1, 16), "DELAYS": (0,)},
    measure: {"BURSTS": (1, 4, 16), "BURST_SECONDS": 0.1, "LEVEL_SECONDS": 0.4, "MOST_LEVELS": 3},
    profiler: {
        "PROBE_SECONDS": 0.3,
        "FEWEST_PROBED": 100,
        # Less confidence takes fewer requests; what it must be is in the unit tests.
        "schedule_for": partial(schedule_for, confidence=0.5),
    },
}


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module, values in SHORT.items():
            for name, value in values.items():
                patched.setattr(module, name, value)
        yield


@pytest.fixture(scope="module")
def fast(line: Line) -> tuple[Planted, Profiled]:
    """Return a version, and its profile; the release without a profile was refused."""
    version = planted(line, "fast", p99_ms=5000, rate=300)
    assert "it has no serving profile: run `millrace release --profile`" in refusal(line, "fast")
    (found,) = profile_unproved(line.installation)
    assert not list(profile_unproved(line.installation))
    return version, found


def planted(line: Line, name: str, p99_ms: float, rate: float, slow: bool = False) -> Planted:
    """Register a version whose release needs a proof of its goal, and make it champion."""
    ingest_rows(line.installation, name)
    pipeline = {
        "serving": {"slo": {"p99_ms": p99_ms, "rate": rate}},
        "promotion": {"require": {"slo": True}},
    }
    made = busy(400, 10, depends=False) if slow else good()
    found = plant(line.installation, name, replace(made, pipeline=pipeline))
    line.promote(found)
    return found


def profiled(line: Line, version: Planted, anew: bool = False) -> Profiled:
    pipeline = load_pipeline(version.folder / "extra_files/pipeline.yaml")
    return profile_version(pipeline, line.installation, version.number, anew)


def refusal(line: Line, name: str) -> str:
    (outcome,) = line.release_again(name)
    assert outcome.error is not None
    return f"{outcome.error.what} {outcome.error.seen}"


def test_a_version_is_served_with_its_profile_and_not_without(
    line: Line, fast: tuple[Planted, Profiled]
) -> None:
    version, found = fast
    assert found.profile.is_proved
    assert found.profile.capacity > 0
    assert line.tags(version)[GOAL_TAG].startswith("met at 300 requests/s: p99 ")
    assert (version.folder / "extra_files" / FILE).read_text() == found.profile.to_json()
    raise_first_error(line.release_again("fast"))
    assert line.client.live_version("fast") == version.number
    assert line.client.parameter("fast", PROFILE) == found.profile.sha256
    settings = found.profile.configuration.settings
    assert f"max_batch_size: {settings['max_batch_size']}" in config_of(line, "fast")
    assert f"count: {settings['instance_count']}" in config_of(line, "fast")
    assert not any(each.changed for each in line.release("fast"))


def test_a_newer_profile_is_loaded_while_requests_go_on(
    line: Line, fast: tuple[Planted, Profiled]
) -> None:
    version = planted(line, "tuned", p99_ms=5000, rate=300)
    store(line, version, fast)
    raise_first_error(line.release_again("tuned"))
    sizes = {"max_batch_size": 3, "preferred_batch_size": 3}
    settings = {**fast[1].profile.configuration.settings, **sizes}
    with Asking(line, "tuned", 0) as asking:
        newer = store(line, version, fast, configuration=Configuration(settings=settings))
        raise_first_error(line.release("tuned"))
    assert asking.wrong == []
    assert asking.asked > 0
    assert line.client.parameter("tuned", PROFILE) == newer.sha256
    assert "max_batch_size: 3" in config_of(line, "tuned")


def test_a_profile_of_another_machine_is_refused_with_its_reason(
    line: Line, fast: tuple[Planted, Profiled]
) -> None:
    version = planted(line, "moved", p99_ms=5000, rate=300)
    store(line, version, fast, machine_kind="aarch64, sve")
    assert "on another kind of machine: aarch64, sve" in refusal(line, "moved")
    store(line, version, fast, engine="nvidia-pytriton 0.1")
    assert "was made with nvidia-pytriton 0.1" in refusal(line, "moved")


def test_the_promotion_card_says_what_would_change(
    line: Line, fast: tuple[Planted, Profiled], capsys: pytest.CaptureFixture[str]
) -> None:
    version, found = fast
    raise_first_error(line.release_again("fast"))
    many, begin = 200, time.time()
    requests = [encode_request("fast", {FEATURES: GOLDEN[:rows]}) for rows in (1, 3)] * (many // 2)
    with OpenLoop(line.client.endpoint) as loop:
        loop.send(np.arange(many) / 200, requests)
    await_recorded(line, "fast", begin, many)
    second = plant(line.installation, "fast", replace(good(), metric=0.9))
    store = client(line.installation.tracking_uri)
    store.set_registered_model_alias("fast", CHALLENGER, str(second.number))

    (card,) = (each for each in promotion_cards(line.installation) if each.model == "fast")
    assert card.served is not None
    assert (card.served.version, card.candidate.version) == (version.number, second.number)
    assert card.traffic is not None
    assert card.traffic.requests >= many
    expected = card.served.expected
    assert expected is not None
    assert expected.verdict == "would have met its goal all the time"
    assert 0 < expected.p99_ms < 5000
    assert card.served.memory_mb == found.profile.figures["memory_mb"] > 5
    assert f"`millrace profile FILE --version {second.number}`" in " ".join(card.notes)
    print_cards([card])
    shown = capsys.readouterr().out
    assert f"after: version {second.number}" in shown
    assert "0.9 (95%: 0." in shown

    known = MlflowRegistry(line.installation)
    for _ in range(2):
        write_card(known, known.registry.version("fast", second.number))
    page = store.get_model_version("fast", str(second.number)).description
    assert page.count(HEADING) == 1
    assert "p99 at the peak" in page
    run = known.registry.version("fast", version.number).run_id
    assert "promotion_card.json" in [each.path for each in store.list_artifacts(run)]


def await_recorded(line: Line, name: str, since: float, many: int) -> None:
    """Wait until the guard has written so many requests since a time."""
    deadline = time.monotonic() + 10
    while len(read_arrivals(line.installation, (name,), since, time.time()).times) < many:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.chaos
def test_a_slow_version_is_not_proved_and_not_served(line: Line) -> None:
    version = planted(line, "slow", p99_ms=2, rate=50, slow=True)
    found = profiled(line, version)
    assert not found.profile.is_proved
    (proof,) = found.profile.proofs
    assert proof.over > proof.allowed
    assert "its serving profile says that the goal is not met at 50" in refusal(line, "slow")


def store(
    line: Line, version: Planted, like: tuple[Planted, Profiled], **other: object
) -> ServingProfile:
    """Store the profile of another version with the same files, with some values changed."""
    own = {"model": version.name, "version": version.number}
    profile = like[1].profile.model_copy(update={**own, **other})
    registry = registry_of(line.installation)
    found = registry.version(version.name, version.number)
    store_profile(registry, found, profile.to_json(), profile.summary())
    return profile


def config_of(line: Line, name: str) -> str:
    return (line.installation.model_repository / name / "config.pbtxt").read_text()


def test_only_with_the_token_the_server_of_a_profile_loads_models(line: Line) -> None:
    version = plant(line.installation, "private", good())
    file = version.folder / "model.onnx"
    with profiled_model(artifact_of_graph(file, digest_of(file)), {}) as model:
        model.triton.load(ServingSpec())
        own = model.triton.endpoint
        assert own.token
        with TritonClient(replace(own, token="")) as other, pytest.raises(WorkError):
            other.load(MODEL)


def test_a_small_batch_of_a_profile_refuses_no_larger_request(line: Line) -> None:
    version = plant(line.installation, "roomy", good())
    file = version.folder / "model.onnx"
    rows = {FEATURES: np.resize(GOLDEN, (64, *GOLDEN.shape[1:]))}
    with profiled_model(artifact_of_graph(file, digest_of(file)), rows) as model:
        model.serve(search.BatchConfiguration(search.Setup(1, 1), 4, 0, largest_request=64))
        errors = [model.send(np.zeros(3), np.full(3, many)).errors for many in (1, 33, 64, 65)]
    assert errors == [{}, {}, {}, {"INVALID_ARGUMENT": 3}]


def test_a_triton_that_traces_keeps_freed_memory_to_its_threads(line: Line, tmp_path: Path) -> None:
    version = plant(line.installation, "traced", good())
    file = version.folder / "model.onnx"
    artifact = artifact_of_graph(file, digest_of(file))
    for trace, expected in ((tmp_path / "trace.json", TRACE_ENVIRONMENT), (None, {})):
        with own_triton(artifact, trace):
            servers = [
                each
                for each in psutil.Process().children(recursive=True)
                if each.name() == "tritonserver" and "millrace-profile-" in " ".join(each.cmdline())
            ]
            found = [each.environ().items() & TRACE_ENVIRONMENT.items() for each in servers]
        assert found == [expected.items()]


@pytest.fixture
def nowhere() -> Iterator[OpenLoop]:
    """Return a generator for a server that does not exist."""
    with OpenLoop(Endpoint("127.0.0.1", *free_ports(3))) as loop:
        yield loop


def test_requests_without_an_answer_take_for_ever_and_are_counted(nowhere: OpenLoop) -> None:
    request = encode_request("m", {FEATURES: GOLDEN[:1]})
    load = nowhere.send(np.array([0.0, 0.01]), [request] * 2)
    assert np.isinf(load.latency).all()
    assert load.errors == {"UNAVAILABLE": 2}


def test_latency_counts_from_when_a_request_was_due(line: Line) -> None:
    version = plant(line.installation, "due", good())
    line.promote(version)
    raise_first_error(line.release("due"))
    request = encode_request("due", {FEATURES: GOLDEN[:1]})
    with OpenLoop(line.client.endpoint) as loop:
        load = loop.send(np.array([0.0, 0.3, 0.31]), [request] * 3)
        decided = loop.send(np.arange(50) * 0.02, [request] * 50, looks=[5], is_decided=all_fast)
    assert (load.sent[1:] >= load.due[1:]).all()
    assert load.ended[1] > 0.3
    assert load.latency == pytest.approx(load.ended - load.due)
    assert 5 <= len(decided.latency) < 50


def all_fast(latency: np.ndarray) -> bool:
    assert len(latency) == 5
    return bool((latency < 10).all())
