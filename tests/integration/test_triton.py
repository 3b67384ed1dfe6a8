"""One embedded Triton for the module; every test serves models of its own names."""

import json
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from grpc import RpcError, insecure_channel
from onnx import TensorProto, helper
from tritonclient import grpc, http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.config.serving_spec import AcceleratorSpec
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.guard.token_names import TOKEN_METADATA
from millrace.serving.release import apply, plan
from millrace.serving.release.apply import Request
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.observe import Observer
from millrace.serving.release.outcome import Outcome, raise_first_error
from millrace.serving.release.reconcile import reconcile
from millrace.serving.release.trial import require_backend
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.load_generator import measure
from millrace.serving.triton.model_config import accelerators_of, from_text
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_folder import Artifact
from tests.integration.attacks import CODE, CODE_CONFIG
from tests.integration.backends import kill_backends
from tests.integration.file_registry import ROWS, FileRegistry
from tests.integration.graphs import constant, proto
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


REQUEST = Request("a test")


@dataclass
class Served:
    """The server under test, with the registry's side of it: what each version consists of."""

    client: TritonClient
    repository: Repository
    installation: Installation
    registry: FileRegistry
    ledger: Ledger

    def release(self, **desired: int) -> Outcome:
        """Move one model's champion and leave the other models as they are."""
        self.registry.champions |= desired
        outcomes = self.reconcile(self.client.endpoint)
        return next(outcome for outcome in outcomes if outcome.model in desired)

    def reconcile(self, *endpoints: Endpoint) -> tuple[Outcome, ...]:
        return reconcile(self.registry, self.ledger, self.repository, endpoints, REQUEST)

    def serve(self, model: str, proto: bytes, **options: Any) -> Path:
        path = self.registry.register(model, 1, proto, **options)
        raise_first_error([self.release(**{model: 1})])
        return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("home")
    installation = Installation(home, "", "").prepared()
    with server.running(installation, free_endpoint()) as client:
        yield Served(
            client,
            Repository(installation.model_repository, installation.staging),
            installation,
            FileRegistry(home),
            Ledger(str(home / "releases")),
        )


def classifier(seed: int = 0) -> bytes:
    """Scores of three classes, and the number of the best one."""
    weights = np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32)
    return proto(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ],
        [("x", FLOAT, ["batch", 4])],
        [("scores", FLOAT, ["batch", 3]), ("label", INT64, ["batch"])],
        [("w", weights)],
    )


def lookup() -> bytes:
    """A table of three rows: an index beyond it fails when it runs, not before."""
    return proto(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [("i", INT64, ["batch", 1])],
        [("y", FLOAT, ["batch", 1])],
        [("table", np.array([10, 20, 30], np.float32))],
    )


def answer_of(served: Served, model: str) -> float:
    return float(served.client.predict(model, {"x": ROWS})["y"][0, 0])


def raw_answer(path: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": rows}), strict=True))


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        threading.Event().wait(0.01)


@contextmanager
def asking(served: Served, model: str) -> Iterator[list[float | Exception]]:
    """Send requests from four threads for the length of the block, and collect the answers."""
    answers: list[float | Exception] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(answer_of(served, model))
            except Exception as error:
                answers.append(error)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask)
        try:
            wait_for(lambda: len(answers) > 20)
            yield answers
            after = len(answers)
            wait_for(lambda: len(answers) > after + 20)
        finally:
            stop.set()


def test_answers_by_http_and_grpc_equal_onnx_runtime(served) -> None:
    path = served.serve("classifier", classifier())
    expected = raw_answer(path, ROWS)
    endpoint = served.client.endpoint
    for module, address in ((http, endpoint.http), (grpc, endpoint.grpc)):
        with module.InferenceServerClient(address) as client:
            tensor = module.InferInput("x", list(ROWS.shape), "FP32")
            tensor.set_data_from_numpy(ROWS)
            answer = client.infer("classifier", [tensor])
        np.testing.assert_array_equal(answer.as_numpy("scores"), expected["scores"])
        np.testing.assert_array_equal(answer.as_numpy("label")[:, 0], expected["label"])


def test_only_the_requested_output_is_sent(served) -> None:
    served.serve("chosen", classifier())
    with grpc.InferenceServerClient(served.client.endpoint.grpc) as client:
        tensor = grpc.InferInput("x", list(ROWS.shape), "FP32")
        tensor.set_data_from_numpy(ROWS)
        wanted = [grpc.InferRequestedOutput("label")]
        answer = client.infer("chosen", [tensor], outputs=wanted).get_response()
    assert [output.name for output in answer.outputs] == ["label"]


def statistics(served: Served, name: str) -> Any:
    """Return Triton's statistics of the one version of a model that is loaded."""
    with grpc.InferenceServerClient(served.client.endpoint.grpc) as client:
        return client.get_inference_statistics(name).model_stats[0]


def test_concurrent_requests_are_answered_by_fewer_runs(served) -> None:
    path = served.serve("batched", classifier(), max_queue_delay_microseconds=100_000)
    before = statistics(served, "batched")
    rows = [ROWS + number for number in range(12)]
    with ThreadPoolExecutor(len(rows)) as pool:
        answers = list(pool.map(lambda each: served.client.predict("batched", {"x": each}), rows))
    after = statistics(served, "batched")
    for each, answer in zip(rows, answers, strict=True):
        np.testing.assert_allclose(answer["scores"], raw_answer(path, each)["scores"], rtol=1e-5)
    requests = after.inference_stats.success.count - before.inference_stats.success.count
    assert requests == len(rows)
    assert after.execution_count - before.execution_count < len(rows) / 2


def test_a_bad_request_does_not_fail_those_it_was_batched_with(served) -> None:
    rows = {"i": np.array([[0], [2]])}
    served.serve("lookup", lookup(), inputs=rows, max_queue_delay_microseconds=100_000)

    def ask(index: int) -> float | str:
        try:
            return float(served.client.predict("lookup", {"i": np.array([[index]])})["y"][0, 0])
        except InputError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        good_1, bad, good_2, good_3 = pool.map(ask, (0, 99, 1, 2))
    assert (good_1, good_2, good_3) == (10, 20, 30)
    assert "indices element out of data bounds" in bad
    assert "model.py" not in bad


RULED = Encoding(
    (Feature("island", "category", 1, ("a", "b", "c")), Feature("v", "vector", 2)), "t"
)
RULED = replace(RULED, features=(*RULED.features, Feature("year", "number", values="int", min=1)))


def ruled() -> bytes:
    """The share that the second column has of itself: of nothing, no number."""
    share = helper.make_node("Div", ["a", "b"], ["y"])
    parts = helper.make_node("Split", ["features", "widths"], ["i", "a", "b", "rest"], axis=1)
    return proto(
        [parts, share],
        [("features", FLOAT, ["batch", 4])],
        [("y", FLOAT, ["batch", 1])],
        [("widths", np.array([1, 1, 1, 1], np.int64))],
    )


def test_online_refuses_what_batch_refuses(served) -> None:
    good = np.float32([[2, 6, 3, 2024]])
    served.registry.register(
        "ruled", 1, ruled(), {"features": good}, max_queue_delay_microseconds=100_000
    )
    artifact = served.registry.artifacts["ruled", 1]
    served.registry.artifacts["ruled", 1] = replace(artifact, rules=RULED.rules())
    raise_first_error([served.release(ruled=1)])  # Triton's warm-up, of zeros, is not held to them

    def ask(row: list[float]) -> float | str:
        try:
            return float(served.client.predict("ruled", {"features": np.float32([row])})["y"][0, 0])
        except MillraceError as error:
            return f"{type(error).__name__} {error}"

    with ThreadPoolExecutor(4) as pool:
        first, bad, empty, last = pool.map(
            ask, ([0, 6, 3, 2024], [7, 6, 3, 2024], [1, 0, 0, 2024], [1, 8, 2, 1])
        )
    assert (first, last) == (2.0, 4.0)
    assert "row 1 cannot be answered: island is an unknown category; seen: 7" in str(bad)
    assert str(bad).startswith("InputError")
    assert "the model's answer is not a number" in str(empty)
    for row, reason in (
        ([0.5, 6, 3, 2024], "island is an unknown category"),
        ([0, float("nan"), 3, 2024], "v is missing"),
        ([0, 6, float("inf"), 2024], "v is not 2 finite numbers"),
        ([0, 6, 3, 2024.5], "year is not a whole number"),
        ([0, 0, 0, 0], "year is below the minimum 1"),
    ):
        assert reason in str(ask(row))
    assert http_status(served, [7, 6, 3, 2024]) == 400
    assert http_status(served, [1, 6, 3, 2024]) == 200
    assert http_status(served, [1, 0, 0, 2024]) == 500


def test_a_shape_that_does_not_hold_its_numbers_fails_no_other_request(served) -> None:
    good = np.float32([[2, 6, 3, 2024]])
    served.registry.register(
        "shapes", 1, ruled(), {"features": good}, max_queue_delay_microseconds=50_000
    )
    artifact = served.registry.artifacts["shapes", 1]
    served.registry.artifacts["shapes", 1] = replace(artifact, rules=RULED.rules())
    raise_first_error([served.release(shapes=1)])
    outcomes: dict[str, set[str]] = {"good": set(), "bad": set()}

    def ask(kind: str, shape: list[int]) -> None:
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name="features", datatype="FP32", shape=shape
        )
        request = service_pb2.ModelInferRequest(
            model_name="shapes", inputs=[tensor], raw_input_contents=[good.tobytes()]
        )
        try:
            answer = stub.ModelInfer(request, timeout=30)
        except RpcError as error:
            outcomes[kind].add(f"{error.code().name}: {error.details()}")
        else:
            outcomes[kind].add(str(np.frombuffer(answer.raw_output_contents[0], np.float32)))

    with insecure_channel(served.client.endpoint.grpc) as channel, ThreadPoolExecutor(6) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for number in range(30):
            shape = [[0, 4], [2**62, 4], [-(2**63), 4]][number % 3]
            list(pool.map(ask, ["good", "bad", "good", "good"], [[1, 4], shape, [1, 4], [1, 4]]))
    assert outcomes["good"] == {"[2.]"}
    assert outcomes["bad"]
    assert all(each.startswith("INVALID_ARGUMENT") for each in outcomes["bad"]), outcomes


def http_status(served, row: list[float]) -> int:  # type: ignore[no-untyped-def]
    tensor = {"name": "features", "shape": [1, len(row)], "datatype": "FP32", "data": row}
    endpoint = served.client.endpoint
    request = urllib.request.Request(
        f"http://{endpoint.host}:{endpoint.http_port}/v2/models/ruled/infer",
        json.dumps({"inputs": [tensor]}).encode(),
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_graph_with_a_fixed_batch_is_served_as_it_is(served) -> None:
    doubled = proto(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        [("x", FLOAT, [2, 4])],
        [("y", FLOAT, [2, 4])],
    )
    served.serve("fixed", doubled, inputs={"x": ROWS[:2]})
    np.testing.assert_array_equal(
        served.client.predict("fixed", {"x": ROWS[:2]})["y"], ROWS[:2] * 2
    )


def test_strings_go_in_and_out(served) -> None:
    same = proto(
        [helper.make_node("Identity", ["text"], ["same"])],
        [("text", STRING, ["batch", 1])],
        [("same", STRING, ["batch", 1])],
    )
    words = np.array([["grüße"], [""], ["日本"]], dtype=object)
    served.serve("text", same, inputs={"text": words})
    answer = served.client.predict("text", {"text": words})["same"]
    assert [item.decode() for item in answer[:, 0]] == ["grüße", "", "日本"]


def test_doing_it_again_changes_nothing(served) -> None:
    served.serve("again", constant(1))
    outcome = served.release(again=1)
    assert (outcome.changed, outcome.version, outcome.previous) == (False, 1, 1)


def test_a_new_version_takes_over_under_load_without_an_error(served) -> None:
    served.serve("swap", constant(1))
    served.registry.register("swap", 2, constant(2))
    with asking(served, "swap") as answers:
        outcome = raise_first_error([served.release(swap=2)])[0]
        wait_for(lambda: answers[-1] == 2)
    assert set(answers) == {1.0, 2.0}
    assert (outcome.previous, outcome.version, outcome.changed) == (1, 2, True)


def test_the_older_version_stays_warm(served) -> None:
    served.serve("warm", constant(1))
    served.registry.register("warm", 2, constant(2))
    raise_first_error([served.release(warm=2)])
    assert served.client.predict("warm", {"x": ROWS}, version=1)["y"][0, 0] == 1


@pytest.mark.chaos
def test_rollback_under_load_without_an_error(served) -> None:
    served.serve("back", constant(1))
    served.registry.register("back", 2, constant(2))
    raise_first_error([served.release(back=2)])
    with asking(served, "back") as answers:
        outcome = raise_first_error([served.release(back=1)])[0]
        wait_for(lambda: answers[-1] == 1)
    assert set(answers) == {1.0, 2.0}
    assert outcome.previous == 2


def test_a_version_with_other_inputs_replaces_the_older_one(served) -> None:
    served.serve("wider", constant(1))
    served.registry.register("wider", 2, constant(2, width=6), {"x": np.ones((3, 6), np.float32)})
    raise_first_error([served.release(wider=2)])
    assert served.client.predict("wider", {"x": np.ones((1, 6), np.float32)})["y"][0, 0] == 2
    assert served.client.live_version("wider") == 2


def test_a_broken_version_is_refused_and_the_older_one_serves_on(served) -> None:
    served.serve("broken", constant(1))
    unknown = helper.make_node("NoSuchOperator", ["x"], ["y"])
    served.registry.register(
        "broken",
        2,
        proto([unknown], [("x", FLOAT, ["batch", 4])], [("y", FLOAT, ["batch", 1])]),
    )
    config = served.repository.saved_config("broken")
    with asking(served, "broken") as answers:
        outcome = served.release(broken=2)
    assert set(answers) == {1.0}
    assert isinstance(outcome.error, WorkError)
    assert "NoSuchOperator" in str(outcome.error)
    assert not outcome.changed
    assert served.client.live_version("broken") == 1
    assert served.repository.saved_config("broken") == config
    events = served.ledger.releases("broken")
    once_more = served.release(broken=2)
    assert (outcome.known, once_more.known) == (False, True)
    assert "NoSuchOperator" in str(once_more.error)
    assert served.ledger.releases("broken") == events


def test_a_killed_backend_process_is_replaced_by_the_next_release(served) -> None:
    served.serve("killed", constant(1))
    assert kill_backends("/model_repository/killed/") > 0
    outcome = served.release(killed=1)
    assert outcome.error is None
    assert answer_of(served, "killed") == 1


@pytest.mark.chaos
def test_a_release_that_comes_to_no_rest_says_so(served, monkeypatch) -> None:
    served.serve("restless", constant(1))
    monkeypatch.setattr(Observer, "_is_answering", lambda self, client, model, version: False)
    monkeypatch.setattr(apply, "MAX_ROUNDS", 2)
    outcome = served.release(restless=1)
    assert "did not converge" in str(outcome.error)
    assert "switch restless version 1" in str(outcome.error)
    assert answer_of(served, "restless") == 1


def test_a_model_without_champion_is_unloaded(served, monkeypatch) -> None:
    served.serve("gone", constant(1))
    del served.registry.champions["gone"]
    served.reconcile(served.client.endpoint)
    assert answer_of(served, "gone") == 1, "the alias may be on its way to another version"
    monkeypatch.setattr(plan, "GRACE_SECONDS", 0.0)
    outcomes = served.reconcile(served.client.endpoint)
    gone = next(outcome for outcome in outcomes if outcome.model == "gone")
    assert (gone.version, gone.previous) == (None, 1)
    with pytest.raises(TransientError, match="is not loaded at the moment"):
        served.client.predict("gone", {"x": ROWS})


def test_wrong_inputs_name_what_is_valid(served) -> None:
    served.serve("strict", constant(1))
    for name, rows in (("x", ROWS[:, :2]), ("x", ROWS.astype(np.float64)), ("z", ROWS)):
        with pytest.raises(InputError, match=r"valid: x: FP32 \[-1, 4\]"):
            served.client.predict("strict", {name: rows})


def test_an_unknown_model_names_the_nearest(served) -> None:
    served.serve("digits", constant(1))
    with pytest.raises(InputError, match="did you mean 'digits'"):
        served.client.predict("digit", {"x": ROWS})


def test_an_unknown_version_names_those_loaded(served) -> None:
    served.serve("versioned", constant(1))
    with pytest.raises(InputError, match=r"valid: \[1\]"):
        served.client.predict("versioned", {"x": ROWS}, version=9)


def test_a_load_run_counts_what_the_server_counts(served) -> None:
    served.serve("loaded", constant(1))
    before = statistics(served, "loaded")
    report = measure(served.client.endpoint, "loaded", {"x": ROWS}, clients=4, seconds=0.5)
    assert report.errors == 0
    deadline = time.monotonic() + 30
    while True:  # Triton counts a request after it has answered it
        after = statistics(served, "loaded")
        counted = (
            after.inference_stats.success.count - before.inference_stats.success.count,
            after.inference_count - before.inference_count,
        )
        if counted == (report.requests, report.rows) or time.monotonic() > deadline:
            break
    assert counted == (report.requests, report.rows)
    assert 0 < report.p50_ms <= report.p90_ms <= report.p99_ms


def test_code_comes_in_with_the_token_only(served, tmp_path) -> None:
    served.serve("open", constant(1))
    endpoint, marker = served.client.endpoint, tmp_path / "ran"
    right = {TOKEN_METADATA: endpoint.token}
    files = {"file:1/model.py": CODE.format(marker=str(marker)).encode()}
    with grpc.InferenceServerClient(endpoint.grpc) as client:
        for wrong in ({}, {TOKEN_METADATA: "wrong"}):
            with pytest.raises(InferenceServerException, match="is restricted"):
                client.load_model("planted", headers=wrong, config=CODE_CONFIG, files=files)
            with pytest.raises(InferenceServerException, match="is restricted"):
                client.unload_model("open", headers=wrong)
        assert not marker.exists()
        assert served.client.live_version("open") == 1
        client.load_model("planted", headers=right, config=CODE_CONFIG, files=files)
        assert marker.exists()
        client.unload_model("planted", headers=right)
    wait_for(lambda: served.client.live_version("planted") is None)


@pytest.mark.parametrize(
    ("kind", "module", "closed"),
    [("http", http, "no such path for clients"), ("grpc", grpc, "is restricted")],
)
def test_only_what_changes_the_server_is_closed(served, kind, module, closed) -> None:
    served.serve("open", constant(1))
    with module.InferenceServerClient(getattr(served.client.endpoint, kind)) as client:
        assert client.is_server_ready()
        for opened in (
            client.get_server_metadata,
            lambda: client.get_model_metadata("open"),
            lambda: client.get_model_config("open"),
            lambda: client.get_inference_statistics("open"),
        ):
            assert opened()
        for change in (
            client.get_model_repository_index,
            lambda: client.load_model("open"),
            lambda: client.unload_model("open"),
            lambda: client.register_system_shared_memory("r", "/r", 1),
            lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}),
            lambda: client.update_log_settings({"log_verbose_level": 1}),
        ):
            with pytest.raises(InferenceServerException, match=closed):
                change()


@pytest.mark.parametrize(("token", "hint"), [("", "unset MILLRACE_TRITON"), ("x", "millrace down")])
def test_a_client_without_the_token_predicts_and_is_told_why_no_more(served, token, hint) -> None:
    served.serve("open", constant(1))
    with TritonClient(replace(served.client.endpoint, token=token)) as client:
        assert client.predict("open", {"x": ROWS})["y"][0, 0] == 1
        with pytest.raises(WorkError, match=f"(?s)is restricted.*{hint}"):
            client.load("open")


def test_the_token_is_in_no_log(served) -> None:
    endpoint = served.client.endpoint
    assert endpoint.token not in server.log_file(served.installation, endpoint).read_text()


def test_a_form_for_vllm_is_refused_before_it_is_staged_where_there_is_no_such_backend(
    served: Served, tmp_path: Path
) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).write_text(name)
    golden = GoldenPrompts(("a",), ("b",), 1, exact=False)
    served.registry.register_language("of_vllm", 1, tmp_path, golden)
    outcome = served.release(of_vllm=1)
    assert "no vllm backend" in str(outcome.error)
    assert not (served.installation.model_repository / "of_vllm").exists()
    assert not any("vllm" in entry.name for entry in served.client.index())


def test_a_server_with_the_backend_is_not_refused(served: Served, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("")
    artifact = Artifact({"model.safetensors": tmp_path / "model.safetensors"}, "", "language")
    with pytest.raises(WorkError, match="no vllm backend"):
        require_backend(artifact, served.client)
    (backends,) = (served.installation.home / "backends").iterdir()
    shutil.copytree(backends / "onnxruntime", backends / "vllm")
    try:
        require_backend(artifact, served.client)
    finally:
        shutil.rmtree(backends / "vllm")


def test_a_gpu_that_is_not_there_is_why_a_version_is_refused(served) -> None:
    served.serve("accelerated", constant(1))
    served.registry.register("accelerated", 2, constant(2), device="gpu", accelerator="tensorrt")
    outcome = served.release(accelerated=2)
    assert "GPU" in str(outcome.error)
    assert answer_of(served, "accelerated") == 1


def test_on_a_cpu_the_accelerator_is_passed_over_and_the_log_says_so(served) -> None:
    served.serve("unhurried", constant(1))
    config = from_text(served.repository.saved_config("unhurried").config.decode())
    config.optimization.CopyFrom(accelerators_of(AcceleratorSpec(precision_mode="FP16")))
    served.repository.write_config(config)
    served.client.load("unhurried")
    assert answer_of(served, "unhurried") == 1
    log = server.log_file(served.installation, served.client.endpoint)
    wait_for(lambda: "the accelerator tensorrt is for KIND_GPU" in log.read_text())
