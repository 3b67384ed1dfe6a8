"""Text down the whole line, and then whatever a client may send: an answer or a clear error."""

import json
import shutil
import textwrap
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pytest
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.registry.tracking import client
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.server import running

pytestmark = pytest.mark.timeout(600)

WORDS = {
    "fruit": "apple pear plum cherry grape melon",
    "tool": "hammer saw drill wrench pliers file",
    "bird": "robin heron finch swan owl crane",
}
ODD = {
    "empty": "",
    "long": "apple " * 1667,
    "one long word": "a" * 10_000,
    "emoji": "\U0001f34e\U0001f350 yum",
    "right to left": "תפוח أجاص",
    "NUL": "apple\x00pear",
    "only NUL": "\x00",
    "white space": " \n\t ",
}


@dataclass(frozen=True)
class Texts:
    """A model of texts, trained, promoted and served."""

    home: Any
    file: Path
    installation: Installation
    outcome: dict[str, Any]

    def ask(self, texts: list[str | bytes]) -> Any:
        """Ask by plain tritonclient over gRPC."""
        request = grpc.InferInput("text", [len(texts), 1], "BYTES")
        request.set_data_from_numpy(np.array(texts, dtype=object)[:, None])
        with grpc.InferenceServerClient(self.installation.triton[0].grpc) as client:
            return client.infer("texts", [request])

    def labels(self, texts: list[str | bytes]) -> list[str]:
        """Ask for the most probable class of each, by name."""
        request = grpc.InferInput("text", [len(texts), 1], "BYTES")
        request.set_data_from_numpy(np.array(texts, dtype=object)[:, None])
        best = [grpc.InferRequestedOutput("probabilities", class_count=1)]
        with grpc.InferenceServerClient(self.installation.triton[0].grpc) as client:
            answer = client.infer("texts", [request], outputs=best)
        return [each.decode().split(":")[2] for each in answer.as_numpy("probabilities").ravel()]

    def post(self, body: bytes) -> tuple[int, dict[str, Any]]:
        """Ask as curl does."""
        url = f"http://{self.installation.triton[0].http}/v2/models/texts/infer"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


def body_of(text: str) -> bytes:
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return json.dumps({"inputs": [tensor]}).encode()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Iterator[Texts]:
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.default_rng(0)
    rows = []
    for number in range(600):
        kind = list(WORDS)[number % 3]
        body = " ".join(random.choice(WORDS[kind].split(), random.integers(1, 9)))
        rows.append({"id": number, "body": body, "kind": kind})
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = folder / "texts.yaml"
    file.write_text(
        textwrap.dedent(
            """
            name: texts
            dataset:
              source: rows.jsonl
              target: kind
              key: id
              columns:
                body: {type: text}
            model:
              family: text_classifier
              params: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2}
              tokenizer: {vocab_size: 300, max_tokens: 32}
            training: {epochs: 3, batch_size: 16, learning_rate: 0.01, max_grad_norm: 1.0,
              num_workers: 1}
            promotion: auto
            """
        )
    )
    home = make(folder / "home")
    done = home.run("run", str(file), "--json")
    assert done.code == 0, done.err
    numbers = (home.environment[f"MILLRACE_TRITON_{n}_PORT"] for n in ("HTTP", "GRPC", "METRICS"))
    endpoint = Endpoint("127.0.0.1", *map(int, numbers))
    uri, tables = f"sqlite:///{home.path}/mlflow.db", str(home.path / "tables")
    installation = Installation(home.path, uri, tables, triton=(endpoint,))
    with running(installation.prepared(), endpoint):
        released = home.run("release", "--json")
        assert released.code == 0, released.err
        assert [each["error"] for each in released.json] == [None]
        yield Texts(home, file, installation, done.json)


def test_it_learns_and_every_form_is_certified(texts: Texts) -> None:
    stages = {stage["name"]: stage for stage in texts.outcome["certificate"]["stages"]}
    assert stages["pytorch"]["metric"] > 0.95
    assert stages["onnx-fp32"]["golden_difference"] < 1e-4
    assert texts.outcome["certificate"]["passed"] is True


def test_text_in_label_and_scores_out(texts: Texts) -> None:
    asked = ["apple plum", "owl", "drill saw saw"]
    assert texts.labels(asked) == ["fruit", "bird", "tool"]
    scores = texts.ask(asked).as_numpy("probabilities")
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-5)


def test_a_plain_post_gets_the_same_and_the_best_classes_by_name(texts: Texts) -> None:
    status, answer = texts.post(body_of("apple plum"))
    assert status == 200
    ((name, scores),) = ((output["name"], output["data"]) for output in answer["outputs"])
    assert name == "probabilities"
    np.testing.assert_allclose(sum(scores), 1, atol=1e-5)
    asked = json.loads(body_of("owl"))
    asked["outputs"] = [{"name": "probabilities", "parameters": {"classification": 2}}]
    _, answer = texts.post(json.dumps(asked).encode())
    best, second = answer["outputs"][0]["data"]
    assert best.endswith(":bird")
    assert float(best.split(":")[0]) > float(second.split(":")[0])


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_is_answered_by_grpc_and_by_post(texts: Texts, name: str) -> None:
    scores = texts.ask([ODD[name]]).as_numpy("probabilities")
    assert scores.shape == (1, 3)
    assert np.isfinite(scores).all()
    status, answer = texts.post(body_of(ODD[name]))
    assert status == 200, answer
    posted = next(o["data"] for o in answer["outputs"] if o["name"] == "probabilities")
    np.testing.assert_allclose(posted, scores[0], atol=1e-5)


def test_odd_texts_together_are_answered_as_alone(texts: Texts) -> None:
    together = texts.ask(list(ODD.values())).as_numpy("probabilities")
    alone = [texts.ask([text]).as_numpy("probabilities")[0] for text in ODD.values()]
    # int8 scales what a batch holds: the certificate's difference is allowed twice
    stage = texts.outcome["certificate"]["stages"][-1]
    np.testing.assert_allclose(together, alone, atol=0.02 + 2 * stage["golden_difference"])


@pytest.mark.parametrize("module", [grpc, http])
def test_bytes_that_are_no_text_are_refused_and_the_next_one_is_answered(
    texts: Texts, module: Any
) -> None:
    endpoint = texts.installation.triton[0]
    address = endpoint.grpc if module is grpc else endpoint.http
    request = module.InferInput("text", [1, 1], "BYTES")
    request.set_data_from_numpy(np.array([[b"abc\xff\xfe"]], dtype=object))
    refused = pytest.raises(InferenceServerException, match="utf-8")
    with module.InferenceServerClient(address) as client, refused:
        client.infer("texts", [request])
    assert texts.labels(["owl"]) == ["bird"]


def test_bytes_that_are_no_text_fail_no_other_request_of_their_batch(texts: Texts) -> None:
    def ask(number: int) -> str:
        try:
            text: str | bytes = b"\xff" if number % 4 == 0 else "owl"
            return texts.labels([text])[0]
        except InferenceServerException:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(64)))
    assert found == ["refused" if number % 4 == 0 else "bird" for number in range(64)]


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs":[{"name":"text","shape":[1,1],"datatype":"BYTES","data":["a\xff"]}]}',
        b'{"inputs":[{"name":"text","shape":[1,1],"datatype":"BYTES","data":["\\ud800"]}]}',
        b'{"inputs":[{"name":"text","shape":[1,1],"datatype":"BYTES","data":[5]}]}',
        b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","data":["a"]}]}',
        b'{"inputs":[{"name":"words","shape":[1,1],"datatype":"BYTES","data":["a"]}]}',
    ],
)
def test_a_request_that_is_wrong_gets_its_error(texts: Texts, body: bytes) -> None:
    status, answer = texts.post(body)
    assert status in (400, 500)  # Triton's own parser says 500 of JSON that it cannot read
    assert answer["error"]
    assert texts.post(body_of("owl"))[0] == 200


def test_a_person_asks_by_the_command(texts: Texts, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"body": "heron swan"}\n{"body": ""}\n')
    done = texts.home.run("predict", "texts", "--rows", str(tmp_path / "rows.jsonl"), "--json")
    assert done.code == 0, done.err
    assert done.json["predictions"][0] == "bird"
    (tmp_path / "bad.jsonl").write_text('{"body": null}\n')
    done = texts.home.run("predict", "texts", "--rows", str(tmp_path / "bad.jsonl"), "--json")
    assert done.code == 2
    assert "body is missing" in done.out + done.err


def test_a_batch_gives_the_answers_of_the_live_model(texts: Texts, tmp_path: Path) -> None:
    rows = [{"id": n, "body": text} for n, text in enumerate(ODD.values())]
    rows.append({"id": len(rows), "body": None})
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = texts.file.with_name("nightly.yaml")
    file.write_text(
        texts.file.read_text() + "\nbatch: {max_dead_letters: 0.2, max_disagreement: 0.5}\n"
    )
    words = ("score", str(file), "--input", str(tmp_path / "in.jsonl"), "--json")
    assert texts.home.run(*words[:1], str(texts.file), *words[2:]).code == 2  # one of nine is dead
    done = texts.home.run(*words)
    assert done.code == 0, done.out + done.err
    assert (done.json["rows"], done.json["dead"]) == (len(rows), 1)
    compared = done.json["agreement"]
    assert (compared["compared"], compared["reason"]) == (len(ODD), "")
    store = client(texts.installation.tracking_uri)
    experiment = store.get_experiment_by_name("texts.batch")
    (run,) = store.search_runs(
        [experiment.experiment_id], order_by=["start_time DESC"], max_results=1
    )
    assert {"drift.tokens", "drift.prediction"} <= run.data.metrics.keys()
    table = deltalake.DeltaTable(done.json["table"]).to_pyarrow_table().sort_by("_row").to_pylist()
    (dead,) = deltalake.DeltaTable(done.json["dead_letters"]).to_pyarrow_table().to_pylist()
    assert (dead["reason"], dead["_key"]) == ("body is missing", str(len(rows) - 1))
    live = texts.ask(list(ODD.values())).as_numpy("probabilities")
    sure = live.max(axis=1) > 0.6
    labels = texts.labels(list(ODD.values()))
    for row, label, is_sure, scores in zip(table, labels, sure, live, strict=False):
        assert abs(row["score"] - scores.max()) < 0.05
        assert row["prediction"] == label or not is_sure


def test_the_live_server_is_certified_on_the_golden_batch_and_the_test_split(texts: Texts) -> None:
    done = texts.home.run("certify", "texts", "--json")
    assert done.code == 0, done.out + done.err
    assert done.json["sizes"] == [1, 2, 3, 64]
    assert done.json["faults"] == []
    stages = {stage["name"]: stage for stage in done.json["certificate"]["stages"]}
    chosen = stages[done.json["certificate"]["candidate"]]
    assert abs(stages["triton"]["metric"] - chosen["metric"]) <= 0.02
    assert stages["triton"]["golden_difference"] <= chosen["golden_difference"] + 1e-4


def test_no_output_is_one_that_triton_dies_of_when_its_classes_are_asked_for(texts: Texts) -> None:
    asked = json.loads(body_of("owl"))
    asked["outputs"] = [{"name": "label", "parameters": {"classification": 1}}]
    status, answer = texts.post(json.dumps(asked).encode())
    assert (status, answer["error"].count("label")) == (400, 1)
    assert texts.labels(["owl"]) == ["bird"]


@pytest.mark.parametrize("megabytes", [5, 40])
def test_a_large_body_is_answered_and_the_next_one_is(texts: Texts, megabytes: int) -> None:
    status, answer = texts.post(body_of("owl " * (megabytes << 18)))
    assert status == 200, answer
    assert texts.labels(["owl"]) == ["bird"]


def test_a_live_server_with_other_labels_fails_its_certificate(texts: Texts) -> None:
    labels = texts.installation.model_repository / "texts" / "labels.txt"
    before = labels.read_text()
    with TritonClient(texts.installation.triton[0]) as client:
        try:
            labels.write_text("".join(f"{each}\n" for each in before.split()[::-1]))
            client.unload("texts")
            client.load("texts")
            done = texts.home.run("certify", "texts", "--json")
        finally:
            labels.write_text(before)
            client.unload("texts")
            client.load("texts")
    assert done.code == 1
    assert any("has the label" in fault for fault in done.json["faults"])


def test_a_tampered_certificate_is_refused(texts: Texts) -> None:
    (kept,) = texts.installation.home.glob("artifacts/**/extra_files/certificate.json")
    before = kept.read_text()
    shutil.rmtree(texts.installation.home / "cache")
    kept.write_text(before.replace('"metric_loss": 0.0', '"metric_loss": 0.1', 1))
    done = texts.home.run("certify", "texts", "--json")
    kept.write_text(before)
    assert kept.read_text() == before
    assert done.code == 2
    assert "is not the file that was registered" in done.out + done.err
