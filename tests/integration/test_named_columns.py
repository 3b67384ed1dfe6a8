"""A model asked by the names of its columns: at a real Triton, and at the door before it.

A code of the category means another colour in each version, so an answer of the wrong version, or
one that was encoded by another, is a wrong label.
"""

import html
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import httpx
import numpy as np
import pytest
from onnx import helper
from tritonclient import grpc
from tritonclient.utils import InferenceServerException

from millrace.models.common.installation import Installation
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.named_columns import columns_json
from millrace.serving.openai_api.api_key import KEYS_FILE, add_key, create_secret, update_keys
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.outcome import Outcome, raise_first_error
from millrace.serving.release.reconcile import reconcile
from millrace.serving.request_table import collect_requests
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.column_front import MOST_ROWS
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import COLUMNS, ready_versions
from tests.integration.backends import kill_backends
from tests.integration.file_registry import FileRegistry
from tests.integration.graphs import FLOAT, proto
from tests.integration.ports import free_endpoint
from tests.integration.test_openai_api import running

pytestmark = pytest.mark.timeout(300)

COLOURS = ("red", "green", "blue")
ORDERS = {1: COLOURS, 2: ("blue", "red", "green"), 3: ("green", "blue", "red")}
MODEL, FRONT = "colours", "colours" + COLUMNS
LOGGED = "logged"
REQUEST = Request("a test")


def encoding_of(version: int) -> Encoding:
    """Return the encoding of a version: a colour by its code, and a number that may be null."""
    colours = ORDERS[version]
    features = (
        Feature("colour", "category", categories=colours),
        Feature("size", "number", nullable=True, min=0),
        Feature("new", "number", values="bool"),
    )
    return Encoding(features, "named", tuple(f"it is {colour}" for colour in colours))


def one_hot() -> bytes:
    """Return a graph whose probabilities are 1 for the class of the code, and 0 for others."""
    return proto(
        [
            helper.make_node("Gather", ["features", "first"], ["codes"], axis=1),
            helper.make_node("Cast", ["codes"], ["whole"], to=7),
            helper.make_node("OneHot", ["whole", "depth", "ends"], ["probabilities"], axis=1),
        ],
        [("features", FLOAT, ["batch", 3])],
        [("probabilities", FLOAT, ["batch", 3])],
        [
            ("first", np.array(0, np.int64)),
            ("depth", np.array(3, np.int64)),
            ("ends", np.array([0, 1], np.float32)),
        ],
    )


@dataclass
class Stand:
    """A Triton with its door, and a registry of versions 1 to 3."""

    client: TritonClient
    repository: Repository
    installation: Installation
    registry: FileRegistry
    ledger: Ledger
    url: str
    key: str

    def release(self, version: int | None, model: str = MODEL) -> tuple[Outcome, ...]:
        if version is None:
            self.registry.champions.pop(model, None)
        else:
            self.registry.champions[model] = version
        endpoints = (self.client.endpoint,)
        outcomes = reconcile(self.registry, self.ledger, self.repository, endpoints, REQUEST)
        raise_first_error(outcomes)
        return outcomes

    @property
    def fronts(self) -> tuple[int, ...]:
        return ready_versions(self.client.index(), FRONT)

    def ask(self, colour: str, size: float = 1.0) -> tuple[str, int]:
        """Ask by plain tritonclient; return the label and the version."""
        with grpc.InferenceServerClient(self.client.endpoint.grpc) as client:
            best = [grpc.InferRequestedOutput("probabilities", class_count=1)]
            answer = client.infer(FRONT, tensors(colour, size), outputs=best)
        label = answer.as_numpy("probabilities").ravel()[0].decode().split(":")[2]
        return label, int(answer.get_response().model_version)

    def post(self, body: Any, model: str = MODEL, key: str | None = None) -> httpx.Response:
        """Ask the door as curl does."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {key or self.key}"}
        url = f"{self.url}/v1/models/{model}:predict"
        return httpx.post(url, content=content, headers=headers, timeout=30)

    def predict(self, *rows: Mapping[str, Any], **more: Any) -> Any:
        answer = self.post({"instances": rows, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()


def tensors(colour: str, size: float) -> list[grpc.InferInput]:
    named = {
        "colour": np.array([[colour.encode()]], object),
        "size": np.array([[size]], np.float64),
        "new": np.array([[True]]),
    }
    types = {"colour": "BYTES", "size": "FP64", "new": "BOOL"}
    found = []
    for name, array in named.items():
        found.append(grpc.InferInput(name, [1, 1], types[name]))
        found[-1].set_data_from_numpy(array)
    return found


def row(colour: str = "red", size: float | None = 1.0, new: object = True) -> dict[str, Any]:
    return {"colour": colour, "size": size, "new": new}


def register(registry: FileRegistry, model: str, version: int, **serving: Any) -> None:
    encoding = encoding_of(version)
    golden = {"features": np.float32([[0, 1, 1], [2, np.nan, 0]])}
    registry.register(model, version, one_hot(), golden, **serving)
    registry.artifacts[model, version] = replace(
        registry.artifacts[model, version],
        labels=tuple(map(str, encoding.labels)),
        rules=encoding.rules(),
        columns=columns_json(encoding, ("id",)),
    )


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    home = tmp_path_factory.mktemp("home")
    installation, endpoint = Installation(home, "", "").prepared(), free_endpoint()
    secret = create_secret()
    new = partial(add_key, name="anna", tokens_per_minute=10**8, secret=secret, now=time.time())
    update_keys(home / KEYS_FILE, new)
    registry = FileRegistry(home)
    for version in ORDERS:
        register(registry, MODEL, version)
    register(registry, LOGGED, 1, request_log={"sample": 1.0, "masked": ["size"]})
    with server.running(installation, endpoint) as client, running(home, endpoint) as url:
        repository = Repository(installation.model_repository, installation.staging)
        ledger = Ledger(str(home / "releases"))
        stand = Stand(client, repository, installation, registry, ledger, url, secret)
        stand.release(1)
        yield stand


def test_it_is_asked_by_tritonclient_and_by_json_with_the_names_of_the_data(stand: Stand) -> None:
    assert stand.fronts == (1,)
    assert stand.ask("green") == ("it is green", 1)
    assert stand.ask("green", float("nan")) == ("it is green", 1)
    data = [["colour", "BYTES", ["blue"]], ["size", "FP64", [2]], ["new", "BOOL", [False]]]
    inputs = [{"name": n, "shape": [1, 1], "datatype": t, "data": d} for n, t, d in data]
    best = {"name": "probabilities", "parameters": {"classification": 1}}
    body = json.dumps({"inputs": inputs, "outputs": [best]}).encode()
    url = f"http://{stand.client.endpoint.http}/v2/models/{FRONT}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        assert json.load(answer)["outputs"][0]["data"] == ["1.000000:2:it is blue"]


def test_the_door_answers_with_labels_scores_and_the_version(stand: Stand) -> None:
    assert stand.predict(row("blue", None), row("red"), scores=2) == {
        "model": MODEL,
        "model_version": 1,
        "predictions": [
            {"prediction": "it is blue", "score": 1.0, "scores": {"it is blue": 1, "it is red": 0}},
            {"prediction": "it is red", "score": 1.0, "scores": {"it is red": 1, "it is green": 0}},
        ],
    }
    assert "scores" not in stand.predict(row())["predictions"][0]
    assert len(stand.predict(row(), scores="all")["predictions"][0]["scores"]) == 3


def test_the_request_of_the_page_is_what_curl_can_send(stand: Stand) -> None:
    page = httpx.get(f"{stand.url}/docs", auth=("anyone", stand.key)).text
    command = html.unescape(page.partition("<pre>")[2].partition("</pre>")[0])
    command = command.replace("KEY", stand.key)
    done = subprocess.run(["bash", "-c", f"{command} -s"], capture_output=True, check=True)
    assert json.loads(done.stdout)["model_version"] == 1, done


def test_a_text_that_is_no_unicode_fails_its_own_request_only(stand: Stand) -> None:
    bad = np.array([[b'{"colour": "\\ud800", "size": 1, "new": true}']], object)
    stop, failed = threading.Event(), list[str]()

    def send_bad() -> None:
        with grpc.InferenceServerClient(stand.client.endpoint.grpc) as client:
            tensor = grpc.InferInput("rows", [1, 1], "BYTES")
            tensor.set_data_from_numpy(bad)
            while not stop.is_set():
                with pytest.raises(InferenceServerException, match="an unknown category"):
                    client.infer(FRONT, [tensor])

    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            pool.submit(send_bad).add_done_callback(
                lambda done: failed.append(str(done.exception())) if done.exception() else None
            )
        answers = {stand.ask("red") for _ in range(200)}
        stop.set()
    assert answers == {("it is red", 1)}
    assert not failed


def test_many_rows_are_answered_in_their_order(stand: Stand) -> None:
    rows = [row(COLOURS[number % 3], number) for number in range(MOST_ROWS)]
    labels = [each["prediction"] for each in stand.predict(*rows)["predictions"]]
    assert labels == [f"it is {each['colour']}" for each in rows]
    answer = stand.post({"instances": [*rows, row()]})
    assert (answer.status_code, "at most 1024" in answer.text) == (400, True)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row("violet"), 'row 2 cannot be answered: colour is an unknown category; seen: \\"violet'),
        (row(size=-1), "size is below the minimum 0; seen: -1"),
        (row(size="much"), "size is not a finite number"),
        (row(new="maybe"), "new is not true or false"),
        (row(new=None), "new is missing; seen: null"),
        ({"colour": "red", "new": True}, "row 2 has no column 'size'; write null if it is not"),
        ({"Colour": "red", "size": 1, "new": True}, "did you mean 'colour' by 'Colour'?"),
    ],
)
def test_a_bad_row_is_refused_with_the_words_of_batch(
    bad: dict[str, Any], words: str, stand: Stand
) -> None:
    answer = stand.post({"instances": [row(), bad]})
    assert answer.status_code == 400
    assert words in answer.text
    assert answer.json()["error"]["param"] == "instances"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"\xff", b'{"instances": 3}', b'{"instances": []}'),
        *(b'{"instances": [3]}', b'{"instances": [{}], "more": 1}', b'{"instances": [[1]]}'),
        *(b'{"instances": [{}], "scores": 0}', b'{"instances": [{"colour": NaN}]}'),
        b'{"instances": ' + b"[" * 100_000,
    ],
)
def test_what_is_no_request_is_refused(body: bytes, stand: Stand) -> None:
    answer = stand.post(body)
    assert answer.status_code == 400, answer.text
    assert "instances" in answer.text


def test_who_has_no_key_or_names_no_model_learns_nothing(stand: Stand) -> None:
    assert stand.post({"instances": [row()]}, key="mr-wrong").status_code == 401
    for path in ("/openapi.json", "/docs"):
        answer = httpx.get(f"{stand.url}{path}")
        assert (answer.status_code, "colour" in answer.text) == (401, False)
    for model in ("nothing", FRONT):
        assert stand.post({"instances": [row()]}, model=model).status_code == 404


def test_the_description_and_the_page_say_what_can_be_asked(stand: Stand) -> None:
    headers = {"authorization": f"Bearer {stand.key}"}
    found = httpx.get(f"{stand.url}/openapi.json", headers=headers).json()
    asked = found["paths"][f"/v1/models/{MODEL}:predict"]["post"]["requestBody"]
    items = asked["content"]["application/json"]["schema"]["properties"]["instances"]["items"]
    assert items["properties"]["colour"]["enum"] == [*COLOURS]
    assert items["properties"]["size"]["type"] == ["number", "null"]
    page = httpx.get(f"{stand.url}/docs", auth=("anyone", stand.key))
    assert page.status_code == 200
    assert f"{MODEL}:predict" in page.text
    assert "script" not in page.headers["content-security-policy"]


def test_a_tensor_of_another_type_or_one_left_out_is_refused(stand: Stand) -> None:
    with grpc.InferenceServerClient(stand.client.endpoint.grpc) as client:
        with pytest.raises(InferenceServerException, match="'new' is missing; needed: colour"):
            client.infer(FRONT, tensors("red", 1)[:2])
        wrong = grpc.InferInput("colour", [1, 1], "FP64")
        wrong.set_data_from_numpy(np.array([[1.0]]))
        with pytest.raises(InferenceServerException, match="data-type"):
            client.infer(FRONT, [wrong])


@contextmanager
def asking(work: Callable[[], Any], threads: int = 4) -> Iterator[Counter[Any]]:
    """Ask without end in threads while the block runs, and count what is answered."""
    seen: Counter[Any] = Counter()
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                seen[work()] += 1
            except (InferenceServerException, AssertionError) as error:
                seen[str(error)] += 1

    workers = [threading.Thread(target=ask) for _ in range(threads)]
    for each in workers:
        each.start()
    try:
        yield seen
        time.sleep(0.3)
    finally:
        stop.set()
        for each in workers:
            each.join()


@pytest.mark.chaos
def test_no_request_fails_or_is_misread_while_versions_change(stand: Stand) -> None:
    door = lambda: stand.predict(row("blue"))["predictions"][0]["prediction"]  # noqa: E731
    with asking(lambda: stand.ask("blue")[0]) as seen, asking(door) as at_door:
        for version in (2, 3, 2, 1, 3):
            stand.release(version)
            assert stand.fronts == (version,)
            assert stand.ask("green") == ("it is green", version)
    assert [*at_door] == ["it is blue"]
    refused = Counter({each: n for each, n in seen.items() if each != "it is blue"})
    # Triton may refuse what it had given to the higher version when a rollback takes that away.
    assert all("UNAVAILABLE" in each for each in refused)
    assert refused.total() <= 12
    folders = stand.repository.versions(MODEL)[FRONT]
    assert folders == (3,)
    stand.release(1)


@pytest.mark.chaos
def test_a_front_step_that_is_killed_comes_back(stand: Stand) -> None:
    deadline = time.monotonic() + 20
    while any(each.name == FRONT and each.state == "UNLOADING" for each in stand.client.index()):
        assert time.monotonic() < deadline, "one killed meanwhile would stay so"
        time.sleep(0.1)
    assert kill_backends(FRONT) > 0
    with pytest.raises(InferenceServerException):
        stand.ask("red")
    stand.release(1)
    assert stand.ask("red") == ("it is red", 1)


def test_a_model_that_is_withdrawn_has_no_front_step(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.serving.release.plan.GRACE_SECONDS", 0.0)
    stand.release(None)
    stand.release(None)
    assert stand.fronts == ()
    assert stand.post({"instances": [row()]}).status_code in (404, 503)
    folder, deadline = Path(stand.repository.root) / FRONT, time.monotonic() + 20
    while folder.exists():  # Triton lets its process end first
        assert time.monotonic() < deadline, stand.client.index()
        stand.release(None)
    stand.release(1)
    assert stand.ask("red") == ("it is red", 1)


def test_a_version_whose_front_step_fails_is_served_by_its_tensors(
    stand: Stand, caplog: pytest.LogCaptureFixture
) -> None:
    artifact = stand.registry.artifacts[MODEL, 2]
    broken = json.loads(str(artifact.columns)) | {"rules": None, "input": 3, "null_values": 5}
    stand.repository.remove(MODEL, 2)
    stand.registry.artifacts[MODEL, 2] = replace(artifact, columns=json.dumps(broken))
    stand.release(2)
    features = {"features": np.float32([[0, 1, 1]])}
    answer = stand.client.predict(MODEL, features)["probabilities"]
    assert answer.tolist() == [[1.0, 0.0, 0.0]]
    assert "not served by the names of its columns" in caplog.text
    assert stand.fronts == ()
    caplog.clear()
    stand.release(2)
    assert "not served" not in caplog.text
    stand.registry.artifacts[MODEL, 2] = artifact
    stand.release(1)
    assert stand.ask("red") == ("it is red", 1)


def test_requests_are_logged_with_their_keys_and_without_what_is_masked(stand: Stand) -> None:
    stand.release(1, LOGGED)
    rows = [{**row("green"), "id": 7, "other": "x"}, row("blue")]
    assert stand.post({"instances": rows}, model=LOGGED).status_code == 200
    assert stand.post({"instances": [row("violet")]}, model=LOGGED).status_code == 400
    with grpc.InferenceServerClient(stand.client.endpoint.grpc) as client:
        key = grpc.InferInput("id", [1, 1], "BYTES")
        key.set_data_from_numpy(np.array([[b"8"]], object))
        inputs = [*tensors("red", 1.0), key]
        client.infer(LOGGED + COLUMNS, inputs, request_id="mine")
    installation = replace(stand.installation, tables_uri=str(stand.installation.home / "tables"))
    collected, deadline = 0, time.monotonic() + 20
    while collected < 3:
        assert time.monotonic() < deadline
        collected += collect_requests(installation, LOGGED).rows
        time.sleep(0.1)
    found = deltalake.DeltaTable(installation.table("requests", LOGGED)).to_pyarrow_table()
    kept = sorted(found.to_pylist(), key=lambda each: str(each["_key"]))
    assert [each["_key"] for each in kept] == ["7", "8", None]
    assert [each["prediction"] for each in kept] == ["it is green", "it is red", "it is blue"]
    assert json.loads(kept[0]["row"]) == {"colour": "green", "new": True}
    assert (kept[1]["request"], kept[1]["model_version"], kept[1]["score"]) == ("mine", 1, 1.0)


@pytest.mark.chaos
def test_a_front_step_that_is_killed_loses_its_last_second_of_the_log(stand: Stand) -> None:
    stand.release(1, LOGGED)
    installation = replace(stand.installation, tables_uri=str(stand.installation.home / "tables"))
    before = collect_requests(installation, LOGGED).rows
    for n in range(200):
        stand.post({"instances": [{**row(), "id": n}]}, model=LOGGED)
    time.sleep(1.5)
    assert kill_backends(LOGGED + COLUMNS) > 0
    stand.release(1, LOGGED)
    assert before + collect_requests(installation, LOGGED).rows >= 200
    stand.release(None, LOGGED)
