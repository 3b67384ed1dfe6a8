"""The traffic splitter in one embedded Triton for the module; every test has models of its own."""

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.rollout_spec import JudgeSpec, RolloutSpec
from millrace.serving.rollout import split_metrics
from millrace.serving.rollout.judge import Counts
from millrace.serving.rollout.rollout import Move, Split, decide_move, first_split, next_split
from millrace.serving.rollout.splitting import current, start_split, stop_split
from millrace.serving.triton import server
from millrace.serving.triton.backends.traffic_split.split_observations import BLOCK
from millrace.serving.triton.client import TritonClient, to_input
from millrace.serving.triton.graph.triton_graph import artifact_of_graph, signature_of
from millrace.serving.triton.model_config import model_config, specific
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import ready_versions
from tests.integration.backends import kill_backends
from tests.integration.graphs import constant, proto
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
ROWS = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)


@dataclass
class Served:
    """The server under test."""

    client: TritonClient
    repository: Repository
    installation: Installation

    def plain(self, model: str, *protos: bytes, labels: tuple[str, ...] = ()) -> None:
        """Stage a file as version 1, 2, … each, and serve version 1."""
        for version, contents in enumerate(protos, start=1):
            path = self.installation.home / f"{model}-{version}.onnx"
            path.write_bytes(contents)
            self.repository.stage(model, version, artifact_of_graph(path, digest_of(path), labels))
        self.serve(model, 1)

    def serve(self, model: str, *versions: int) -> None:
        """Serve versions by the plain configuration."""
        artifact = self.repository.artifact(model, versions[0])
        signature = signature_of(artifact)
        policy = specific(versions)
        config = model_config(
            model, signature, artifact.serving, version_policy=policy, labels=artifact.labels
        )
        self.repository.write_config(config, artifact.labels)
        self.client.load(model)

    def start_split(self, model: str, weight: float = 100.0, **values: object) -> Split:
        """Share requests between versions 1 and 2."""
        kind = "shadow" if weight == 0 else "canary"
        split = Split(model, 1, 2, kind, weight, 100.0, "sticky_key", 0.01, began=time.time())
        split = replace(split, **values)  # type: ignore[arg-type]
        start_split(split, self.repository, self.client)
        return split

    def ask(self, model: str, rows: np.ndarray = ROWS, **options: object) -> dict[str, np.ndarray]:
        """Send one request with options of `tritonclient`."""
        name = "i" if rows.dtype == np.int64 else "x"
        with grpc.InferenceServerClient(self.client.endpoint.grpc) as client:
            answer = client.infer(model, [to_input(name, rows)], **options)
        return {each.name: answer.as_numpy(each.name) for each in answer.get_response().outputs}

    def answers(self, model: str, keys: Sequence[object]) -> list[float]:
        """Return the first number of the answer to each sticky key."""

        def ask(client: grpc.InferenceServerClient, key: object) -> float:
            answer = client.infer(
                model, [to_input("x", ROWS)], parameters={"sticky_key": key}, client_timeout=30
            )
            return float(answer.as_numpy("y")[0, 0])

        with (
            grpc.InferenceServerClient(self.client.endpoint.grpc) as client,
            ThreadPoolExecutor(4) as pool,
        ):
            return list(pool.map(lambda key: ask(client, key), keys))

    def counts(self, split: Split) -> Counts:
        return split_metrics.count_step(split, split_metrics.read_counters(self.client.endpoint))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    installation = Installation(home, "", "").prepared()
    with server.running(installation, free_endpoint()) as client:
        yield Served(
            client, Repository(installation.model_repository, installation.staging), installation
        )


def classifier(above: float = np.inf) -> bytes:
    """Scores of three classes and the best one; turned round in rows that begin above a number."""
    weights = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    return proto(
        [
            helper.make_node("MatMul", ["x", "w"], ["right"]),
            helper.make_node("Gather", ["x", "first"], ["begin"], axis=1),
            helper.make_node("Greater", ["begin", "above"], ["turned"]),
            helper.make_node("Neg", ["right"], ["wrong"]),
            helper.make_node("Where", ["turned", "wrong", "right"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ],
        [("x", FLOAT, ["batch", 4])],
        [("scores", FLOAT, ["batch", 3]), ("label", INT64, ["batch"])],
        [
            ("w", weights),
            ("first", np.array([0])),
            ("above", np.full(1, above, np.float32)),
        ],
    )


def lookup(*table: float) -> bytes:
    """An index beyond the table fails when it runs, not before."""
    return proto(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [("i", INT64, ["batch", 1])],
        [("y", FLOAT, ["batch", 1])],
        [("table", np.array(table, np.float32))],
    )


def slow(layers: int, width: int = 1024) -> bytes:
    """The more layers, the slower, 0.1 to 0.3 ms each; every answer is zero."""
    nodes = [helper.make_node("MatMul", ["x", "into"], ["h0"])]
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [f"h{layer}", "w"], [f"h{layer + 1}"]))
    nodes.append(helper.make_node("MatMul", [f"h{layers}", "out"], ["y"]))
    return proto(
        nodes,
        [("x", FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 1])],
        [
            ("into", np.zeros((4, width), np.float32)),
            ("w", np.zeros((width, width), np.float32)),
            ("out", np.zeros((width, 1), np.float32)),
        ],
    )


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def settled(served: Served, split: Split, condition: Callable[[Counts], bool]) -> Counts:
    """Wait until the counters say so; they are handed over twice a second."""
    wait_for(lambda: condition(served.counts(split)))
    return served.counts(split)


@dataclass
class Load:
    """What clients got while a block ran."""

    answers: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)


@contextmanager
def load(served: Served, model: str, clients: int = 4, rows: int = 8) -> Iterator[Load]:
    """Send requests of random rows with random keys for the length of the block."""
    seen, stop, numbers = Load(), threading.Event(), itertools.count()

    def ask() -> None:
        generator = np.random.default_rng(next(numbers))
        with grpc.InferenceServerClient(served.client.endpoint.grpc) as client:
            while not stop.is_set():
                tensor = to_input("x", generator.normal(size=(rows, 4)).astype(np.float32))
                key = {"sticky_key": int(generator.integers(2**40))}
                try:
                    answer = client.infer(model, [tensor], parameters=key, client_timeout=30)
                    output = answer.get_response().outputs[0].name
                    seen.answers.append(float(answer.as_numpy(output).ravel()[0]))
                except InferenceServerException as error:
                    seen.errors.append(error)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(ask)
        try:
            yield seen
        finally:
            stop.set()


@pytest.mark.parametrize("weight", [10.0, 50.0])
def test_the_candidate_gets_its_share(served, weight) -> None:
    model = f"share{weight:g}"
    served.plain(model, constant(1), constant(2))
    split = served.start_split(model, weight)
    answers = served.answers(model, range(1500))
    expected, spread = weight / 100, (weight / 100 * (1 - weight / 100) / 1500) ** 0.5
    assert set(answers) == {1.0, 2.0}
    assert answers.count(2.0) / 1500 == pytest.approx(expected, abs=4 * spread)
    told = settled(served, split, lambda c: c.champion.requests + c.candidate.requests == 1500)
    assert told.candidate.requests == answers.count(2.0)
    assert told.champion.blocks == told.champion.requests // BLOCK
    assert told.shed == 0


def test_a_key_stays_with_its_version_and_with_the_candidate_in_later_steps(served) -> None:
    served.plain("sticky", constant(1), constant(2))
    users = [f"user-{number}" for number in range(60)]
    served.start_split("sticky", 20)
    before = served.answers("sticky", users)
    assert [served.answers("sticky", users) for _ in range(3)] == [before] * 3
    served.start_split("sticky", 60)
    after = served.answers("sticky", users)
    assert after.count(2.0) > before.count(2.0) > 0
    assert all(b == 2.0 for a, b in zip(before, after, strict=True) if a == 2.0)


def test_ids_and_inputs_stand_in_for_the_key(served) -> None:
    served.plain("keys", constant(1), constant(2))
    served.start_split("keys", 50)
    ways: tuple[Callable[[int], dict[str, np.ndarray]], ...] = (
        lambda n: served.ask("keys", request_id=f"r{n}"),
        lambda n: served.ask("keys", sequence_id=n + 1),
        lambda n: served.ask("keys", ROWS + n),
    )
    for ask in ways:
        answers = [float(ask(number)["y"][0, 0]) for number in range(20)]
        assert set(answers) == {1.0, 2.0}
        assert [float(ask(number)["y"][0, 0]) for number in range(20)] == answers


def test_a_shadow_answers_nobody_and_is_compared(served) -> None:
    served.plain("shadow", classifier(), classifier(above=0.5))
    split = served.start_split("shadow", 0)
    rows = np.random.default_rng(2).normal(size=(100, 4)).astype(np.float32)
    right = np.argmax(
        rows @ np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32), axis=1
    )
    for start in range(100):
        part = slice(start, start + 1)
        np.testing.assert_array_equal(served.ask("shadow", rows[part])["label"][:, 0], right[part])
        if start % 10 == 9:  # were the candidate more than 12 behind, there would be no copy for it
            told = settled(served, split, lambda c, asked=start + 1: c.compared == asked)
    assert told.agreeing == int((rows[:, 0] <= 0.5).sum())
    assert (told.champion.requests, told.candidate.requests) == (100, 100)


def test_of_each_request_one_row_is_compared(served) -> None:
    served.plain("rows", classifier(), classifier(above=0.5))
    split = served.start_split("rows", 100)
    differing = np.ones((32, 4), np.float32)
    for rows in (differing, -differing):  # the versions agree about none, and about all
        served.ask("rows", rows)
    assert settled(served, split, lambda c: c.compared == 2).agreeing == 1


def test_a_canary_is_compared_with_the_champion(served) -> None:
    served.plain("compared", classifier(), classifier(above=0.5))
    split = served.start_split("compared", 100)
    rows = np.random.default_rng(2).normal(size=(64, 4)).astype(np.float32)
    for start in range(64):
        served.ask("compared", rows[start : start + 1])
    told = settled(served, split, lambda c: c.compared == 64)
    assert told.agreeing == int((rows[:, 0] <= 0.5).sum())


def test_the_champion_answers_what_the_candidate_cannot(served) -> None:
    served.plain("fallback", lookup(10, 20, 30), lookup(10))
    split = served.start_split("fallback", 100)
    asked = [served.ask("fallback", np.array([[index]]))["y"][0, 0] for index in (0, 1, 2)]
    assert asked == [10, 20, 30]
    told = settled(served, split, lambda c: c.candidate.requests == 3)
    assert told.candidate.failures == 2
    assert told.champion.requests == 0


def test_a_request_that_both_versions_refuse_is_the_clients_fault(served) -> None:
    served.plain("refused", lookup(10, 20), lookup(10, 20))
    with pytest.raises(InferenceServerException) as before:
        served.ask("refused", np.array([[99]]))
    for weight in (100.0, 1e-9, 0.0):
        split = served.start_split("refused", weight)
        with pytest.raises(InferenceServerException) as after:
            served.ask("refused", np.array([[99]]))
        assert (after.value.status(), after.value.message()) == (
            before.value.status(),
            before.value.message(),
        )
        time.sleep(0.6)
        assert served.counts(split).candidate.failures == 0


def test_clients_see_the_same_model(served) -> None:
    served.plain("same", classifier(), classifier(), labels=("a", "b", "c"))

    def seen(module, address):
        with module.InferenceServerClient(address) as client:
            metadata, tensor = (
                client.get_model_metadata("same"),
                module.InferInput("x", [5, 4], "FP32"),
            )
            tensor.set_data_from_numpy(ROWS)
            outputs = [module.InferRequestedOutput("scores", class_count=1)]
            answer = client.infer("same", [tensor], outputs=outputs)
            names = [each for each in ("scores", "label") if answer.as_numpy(each) is not None]
            told = answer.as_numpy("scores").tolist()
        inputs = metadata["inputs"] if module is http else list(metadata.inputs)
        outputs = metadata["outputs"] if module is http else list(metadata.outputs)
        return inputs, outputs, names, told

    def refused() -> str:
        with pytest.raises(InferenceServerException) as error:
            served.ask("same", np.zeros((65, 4), np.float32))
        return str(error.value)

    endpoint = served.client.endpoint
    protocols = ((http, endpoint.http), (grpc, endpoint.grpc))
    before, too_large = [seen(*each) for each in protocols], refused()
    served.start_split("same", 50)
    assert [seen(*each) for each in protocols] == before
    assert refused() == too_large
    assert served.client.predict("same", {"x": ROWS}, version=1).keys() == {"scores", "label"}
    with pytest.raises(InputError, match=r"valid: x: FP32 \[-1, 4\]"):
        served.client.predict("same", {"x": ROWS[:, :2]})


def test_texts_pass(served) -> None:
    same = proto(
        [helper.make_node("Identity", ["x"], ["y"])],
        [("x", TensorProto.STRING, ["batch", 1])],
        [("y", TensorProto.STRING, ["batch", 1])],
    )
    served.plain("text", same, same)
    split = served.start_split("text", 100)
    words = np.array([["grüße"], [""], ["日本"]], dtype=object)
    answer = served.ask("text", words)["y"]
    assert [item.decode() for item in answer[:, 0]] == ["grüße", "", "日本"]
    assert settled(served, split, lambda c: c.compared == 1).agreeing == 1


@pytest.mark.chaos
@pytest.mark.parametrize("weight", [0.0, 50.0])
def test_a_rollout_begins_and_ends_under_load_without_an_error(served, weight) -> None:
    model = f"switched{weight:g}"
    served.plain(model, constant(1), constant(2))
    with load(served, model) as seen:
        for to in (weight, weight and 90.0, 0.0):
            split = served.start_split(model, to)
            settled(served, split, lambda c: c.champion.requests + c.candidate.requests > 200)
        served.serve(model, 1)
        stop_split(model, served.client)
        settled_at = len(seen.answers)
        wait_for(lambda: len(seen.answers) > settled_at + 200)
    assert seen.errors == []
    assert set(seen.answers) == ({1.0, 2.0} if weight else {1.0})
    assert ready_versions(served.client.index(), f"{model}.arms") == ()
    assert split_metrics.read_counters(served.client.endpoint).flushes(model) == {}


def test_the_candidate_is_promoted_under_load_without_an_error(served) -> None:
    served.plain("promoted", constant(1), constant(2))
    with load(served, "promoted") as seen:
        served.start_split("promoted", 50)
        served.serve("promoted", 1, 2)
        stop_split("promoted", served.client)
        settled_at = len(seen.answers)
        wait_for(lambda: len(seen.answers) > settled_at + 200)
    assert seen.errors == []
    assert set(seen.answers[-100:]) == {2.0}


def test_a_candidate_that_is_slow_delays_nobody_in_a_shadow(served) -> None:
    served.plain("slow", slow(1), slow(600))
    split = served.start_split("slow", 0)

    def seconds(model: str, version: str = "") -> float:
        start = time.perf_counter()
        served.ask(model, model_version=version)
        return time.perf_counter() - start

    alone = seconds(split.arms, "2")
    assert np.median([seconds("slow") for _ in range(100)]) < alone / 2
    assert settled(served, split, lambda c: c.shed > 0).candidate.failures == 0


@pytest.mark.chaos
def test_a_candidate_that_hangs_is_given_up_in_a_canary(served) -> None:
    served.plain("late", slow(1), slow(600))
    split = served.start_split("late", 100, timeout_s=0.02)
    with ThreadPoolExecutor(32) as pool:
        start = time.perf_counter()
        list(pool.map(lambda _: served.ask("late"), range(32)))
        assert time.perf_counter() - start < 10
    told = settled(served, split, lambda c: c.candidate.requests + c.shed == 32)
    assert told.candidate.failures > 0
    assert told.shed > 0


def test_a_probe_is_answered_by_the_champion_and_not_counted(served) -> None:
    served.plain("probed", constant(1), constant(2))
    split = served.start_split("probed", 100)
    for _ in range(5):
        assert served.client.predict("probed", {"x": ROWS}, probe=True)["y"][0, 0] == 1
    served.ask("probed")
    assert settled(served, split, lambda c: c.candidate.requests > 0).candidate.requests == 1
    assert served.counts(split).champion.requests == 0


@pytest.mark.chaos
def test_a_candidate_whose_process_dies_fails_no_request(served) -> None:
    served.plain("killed", constant(1), constant(2))
    split = served.start_split("killed", 50)
    with load(served, "killed") as seen:
        settled(served, split, lambda c: c.candidate.requests > 20)
        assert kill_backends(f"{split.arms}/2") > 0
        settled(served, split, lambda c: c.candidate.failures > 0)
    assert seen.errors == []


def test_versions_that_differ_in_their_outputs_share_nothing(served) -> None:
    served.plain("unlike", constant(1), classifier())
    with pytest.raises(WorkError, match="cannot share requests"):
        served.start_split("unlike")
    assert current(served.repository, "unlike") is None
    assert served.client.predict("unlike", {"x": ROWS})["y"][0, 0] == 1


def test_a_candidate_that_does_not_load_changes_nothing(served) -> None:
    unknown = helper.make_node("NoSuchOperator", ["x"], ["y"])
    broken = proto([unknown], [("x", FLOAT, ["batch", 4])], [("y", FLOAT, ["batch", 1])])
    served.plain("broken", constant(1), broken)
    with load(served, "broken") as seen, pytest.raises(WorkError, match="NoSuchOperator"):
        served.start_split("broken")
    assert (seen.errors, set(seen.answers)) == ([], {1.0})
    assert current(served.repository, "broken") is None


@pytest.mark.parametrize(("goal_ms", "late"), [(0.001, 64), (60_000.0, 0), (math.inf, 0)])
def test_answers_later_than_the_goal_are_counted(served, goal_ms: float, late: int) -> None:
    served.plain("late", constant(1), constant(2))
    split = served.start_split("late", goal_ms=goal_ms)
    assert served.answers("late", range(64)) == [2.0] * 64
    counts = settled(served, split, lambda each: each.candidate.timed == 64)
    assert counts.candidate.late == late
    assert counts.candidate.late_squares == 2 * (late / 2) ** 2
    served.serve("late", 1)


def test_a_rollout_is_found_on_disk(served) -> None:
    served.plain("found", constant(1), constant(2))
    split = served.start_split("found", 12.5)
    assert current(served.repository, "found") == split
    assert split_metrics.read_counters(served.client.endpoint).has_step(split)
    served.serve("found", 1)
    assert current(served.repository, "found") is None


def rolled_out(served: Served, model: str, spec: RolloutSpec, clients: int) -> tuple[Move, Load]:
    """Do what the release flow does, until the end."""
    with load(served, model, clients) as seen:
        split = first_split(model, 1, 2, spec, time.time())
        start_split(split, served.repository, served.client)
        while True:
            time.sleep(0.5)
            counts = served.counts(split)
            to = decide_move(split, spec, counts, time.time())
            if to.kind in ("promote", "back"):
                break
            if to.weight_percent is not None:
                split = next_split(split, spec, to.weight_percent, time.time())
                start_split(split, served.repository, served.client)
        served.serve(model, *((1, 2) if to.kind == "promote" else (1,)))
        stop_split(model, served.client)
    return to, seen


CANARY = RolloutSpec(kind="canary", steps=(20, 50), hold_s=12, compare_percent=25)
SHADOW = RolloutSpec(kind="shadow", hold_s=12)
PATIENT = 150.0
"""Seconds for a verdict against a candidate, which a quiet machine gives within ten."""
FIVE_PERCENT = 1.645


@pytest.mark.chaos
@pytest.mark.parametrize("spec", [CANARY, SHADOW], ids=["canary", "shadow"])
def test_an_equal_candidate_is_promoted(served, spec) -> None:
    model = f"equal-{spec.kind}"
    served.plain(model, slow(2), slow(2))
    # Steps of 12 s on two cores give too few requests for the default limits.
    judge = JudgeSpec(max_slowdown=1.6, min_agreement=0.97, max_failures=0.03)
    quick = spec.model_copy(update={"judge": judge})
    to, seen = rolled_out(served, model, quick, clients=2)
    assert to.kind == "promote", to.reason
    assert seen.errors == []
    assert served.client.live_version(model) == 2


@pytest.mark.chaos
@pytest.mark.parametrize("spec", [CANARY, SHADOW], ids=["canary", "shadow"])
@pytest.mark.parametrize(
    ("name", "champion", "candidate", "said"),
    [
        ("disagrees", classifier(), classifier(FIVE_PERCENT), "rows agree"),
        ("slow", slow(20), slow(40), "times the champion's"),
    ],
    ids=["5% worse in agreement", "twice as slow"],
)
def test_a_bad_candidate_goes_back_by_itself(served, spec, name, champion, candidate, said) -> None:
    model = f"{name}-{spec.kind}"
    served.plain(model, champion, candidate)
    patient = spec.model_copy(update={"hold_s": PATIENT})
    to, seen = rolled_out(served, model, patient, clients=2)
    assert to.kind == "back"
    assert not to.reason.startswith("inconclusive"), to.reason
    assert said in to.reason
    assert seen.errors == []
    assert served.client.live_version(model) == 1
