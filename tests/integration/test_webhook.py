"""The webhook receiver with a real MLflow and a real Prefect server; no Triton is needed."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from mlflow import MlflowClient

from millrace.flows.services import service_specs
from millrace.flows.settings import Settings
from millrace.flows.triggers.release_worker import TAG, find_deployment
from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    MAX_BYTES,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    compute_signature,
)
from millrace.serving.triton.server_index import TRIAL

pytestmark = pytest.mark.timeout(600)

MODEL = "moved"
VERSIONS = 13


def _wait(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return found


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _answers(url: str) -> Any:
    try:
        return httpx.get(url, timeout=2, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None


@dataclass
class Parts:
    """A home whose MLflow server and receiver are started and stopped one by one."""

    settings: Settings
    started: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)

    @property
    def mlflow(self) -> MlflowClient:
        address = service_specs.mlflow_service(self.settings).address
        return MlflowClient(address, address)

    @property
    def url(self) -> str:
        return service_specs.webhook_service(self.settings).address

    def start(self, *parts: service_specs.Service) -> None:
        self.settings.installation().prepared()
        for part in parts:
            with part.log.open("ab") as log:
                self.started[part.name] = subprocess.Popen(
                    part.argv,
                    env=service_specs.unsupervised_environment(self.settings, part),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )

    def stop(self, name: str, signum: int = signal.SIGTERM) -> float:
        """Stop a part; return how many seconds that took."""
        before, process = time.monotonic(), self.started.pop(name)
        process.send_signal(signum)
        process.wait(30)
        return time.monotonic() - before

    def registered(self) -> None:
        """Wait until MLflow has our webhook."""
        _wait(
            lambda: (_answers(f"{self.url}/health") or {}).get("registered"), 90, "it is registered"
        )

    def prefect(self, method: str, path: str, body: Any = None) -> Any:
        """Call the API; as Prefect's own client does, again where its database is busy."""

        def answer() -> httpx.Response | None:
            url = f"{self.settings.prefect_api_url}{path}"
            found = httpx.request(method, url, json=body, timeout=30, trust_env=False)
            return found if found.status_code != 503 else None

        found = _wait(answer, 30, "Prefect answers")
        found.raise_for_status()
        return found.json()

    def runs(self, deployment_id: str) -> list[Any]:
        """Return the finished runs of this receiver, oldest first: others share the server."""
        body = {
            "flow_runs": {
                "tags": {"all_": [TAG]},
                "state": {"type": {"any_": ["COMPLETED"]}},
                "deployment_id": {"any_": [deployment_id]},
            },
            "sort": "START_TIME_ASC",
        }
        return list(self.prefect("POST", "/flow_runs/filter", body))

    def told(self) -> list[str]:
        """Return what the receiver was asked for, and whether anything was due, oldest first."""
        lines = service_specs.webhook_service(self.settings).log.read_text().splitlines()
        return [line for line in lines if "nothing is due: " in line or "releasing (" in line]

    def asked(self, why: str, before: int = 0) -> str:
        """Wait until a release was asked for by a reason, after a number of others."""
        found = _wait(lambda: [each for each in self.told()[before:] if why in each], 30, why)
        return str(found[-1])

    def leave_a_trial(self) -> None:
        """Leave what a killed release leaves, so that the next one has something to do."""
        (self.settings.installation().model_repository / f"{MODEL}{TRIAL}1" / "1").mkdir(
            parents=True
        )

    def deliver(self, body: bytes, delivery: str, at: float, secret: str) -> int:
        stamp = str(int(at))
        headers = {
            "Content-Type": "application/json",
            ID_HEADER: delivery,
            TIMESTAMP_HEADER: stamp,
            SIGNATURE_HEADER: compute_signature(secret, delivery, stamp, body),
        }
        url = f"{self.url}/mlflow"
        return httpx.post(url, content=body, headers=headers, trust_env=False).status_code


def _register_model(store: MlflowClient) -> None:
    store.create_registered_model(MODEL)
    for _ in range(VERSIONS):
        store.create_model_version(MODEL, "s3://nowhere/model")


def _declare(parts: Parts) -> str:
    """Make the deployment as the deployments' process does, and take its only slot."""
    spec = find_deployment(parts.settings)
    assert spec is not None
    flow = parts.prefect("POST", "/flows/", {"name": "release_model"})["id"]
    limit = {"concurrency_limit": 1, "concurrency_options": {"collision_strategy": "CANCEL_NEW"}}
    body = {"name": spec.name, "flow_id": flow, "tags": list(spec.tags), **limit}
    body["enforce_parameter_schema"] = False
    made = str(parts.prefect("POST", "/deployments/", body)["id"])
    run = parts.prefect("POST", f"/deployments/{made}/create_flow_run", {})["id"]
    parts.prefect("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})
    return made


@pytest.fixture(scope="module")
def parts(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], Any], prefect_api: str
) -> Iterator[Parts]:
    home = make(tmp_path_factory.mktemp("webhook") / "home")
    ports = {
        name.removeprefix("MILLRACE_").lower(): value
        for name, value in home.environment.items()
        if name.startswith("MILLRACE_") and name.endswith("_PORT")
    }
    chosen = Settings(home=home.path, prefect_api_url=prefect_api, pipelines=(), **ports)
    parts = Parts(chosen)
    try:
        parts.start(service_specs.mlflow_service(chosen), service_specs.webhook_service(chosen))
        parts.registered()
        yield parts
    finally:
        for name in list(parts.started):
            parts.stop(name)


@pytest.fixture(scope="module")
def declared(parts: Parts) -> str:
    _register_model(parts.mlflow)
    return _declare(parts)


def test_where_something_is_due_it_is_a_run_of_the_deployment_whose_slot_is_taken(
    parts: Parts, declared: str
) -> None:
    parts.leave_a_trial()
    parts.mlflow.set_registered_model_alias(MODEL, "champion", "1")
    (run,) = _wait(lambda: parts.runs(declared), 30, "it is released")
    assert (run["deployment_id"], run["state_type"]) == (declared, "COMPLETED")
    assert run["name"] == f"release {MODEL}"
    assert {TAG, MODEL} <= set(run["tags"])


def test_a_champion_is_told_at_once_and_makes_no_run_where_nothing_is_due(
    parts: Parts, declared: str
) -> None:
    known, before, runs = len(parts.told()), time.monotonic(), len(parts.runs(declared))
    parts.mlflow.set_registered_model_alias(MODEL, "champion", "2")
    assert "nothing is due" in parts.asked(f"champion of {MODEL} → version 2", known)
    assert time.monotonic() - before < 10
    parts.mlflow.delete_registered_model_alias(MODEL, "champion")
    parts.asked(f"champion of {MODEL} removed", known)
    assert len(parts.runs(declared)) == runs


def test_twelve_moves_in_a_row_end_in_the_last_one(parts: Parts, declared: str) -> None:
    known = len(parts.told())
    for version in range(2, VERSIONS + 1):
        parts.mlflow.set_registered_model_alias(MODEL, "champion", str(version))
    last = parts.asked(f"version {VERSIONS}", known)
    assert last == parts.told()[-1]


def test_what_is_not_mlflows_is_refused(parts: Parts, declared: str) -> None:
    secret = (parts.settings.run / "webhook.secret").read_text()
    data = {"name": MODEL, "alias": "champion", "version": "1"}
    event = {"entity": "model_version_alias", "action": "created", "data": data}
    body, now = json.dumps(event).encode(), time.time()
    known = len(parts.told())
    assert parts.deliver(body, "wrong", now, "guessed") == 401
    assert parts.deliver(body, "old", now - 400, secret) == 400
    assert parts.deliver(b"x" * (MAX_BYTES + 1), "large", now, secret) == 413
    assert httpx.get(f"{parts.url}/mlflow", trust_env=False).status_code == 405
    assert len(parts.told()) == known
    assert parts.deliver(body, "once", now, secret) == 202
    _wait(lambda: len(parts.told()) == known + 1, 20, "the delivery is taken")
    assert parts.deliver(body, "once", now, secret) == 409
    assert len(parts.told()) == known + 1


def test_the_secret_is_private(parts: Parts) -> None:
    assert (parts.settings.run / "webhook.secret").stat().st_mode & 0o777 == 0o600
    (row,) = parts.mlflow.list_webhooks()
    assert row.secret is None


def test_a_receiver_that_comes_back_registers_nothing_twice(parts: Parts, declared: str) -> None:
    (before,) = parts.mlflow.list_webhooks()
    known = len(parts.told())
    assert parts.stop("webhook") < 8
    parts.start(service_specs.webhook_service(parts.settings))
    parts.registered()
    (after,) = parts.mlflow.list_webhooks()
    assert (after.webhook_id, after.last_updated_timestamp) == (
        before.webhook_id,
        before.last_updated_timestamp,
    )
    parts.asked("webhook: started", known)


@pytest.mark.chaos
def test_what_a_killed_receiver_was_at_is_told_as_crashed(parts: Parts, declared: str) -> None:
    state = {"state": {"type": "PENDING"}, "tags": [TAG]}
    lost = parts.prefect("POST", f"/deployments/{declared}/create_flow_run", state)["id"]
    parts.stop("webhook", signal.SIGKILL)
    parts.start(service_specs.webhook_service(parts.settings))
    parts.leave_a_trial()
    _wait(
        lambda: parts.prefect("GET", f"/flow_runs/{lost}")["state_type"] == "CRASHED", 60, "crashed"
    )


def test_another_port_moves_the_webhook(parts: Parts) -> None:
    moved = parts.settings.model_copy(update={"webhook_port": _free_port()})
    for chosen in (moved, parts.settings):
        parts.stop("webhook")
        parts.stop("mlflow")  # which takes no address but that of its own home's receiver
        again = Parts(chosen, parts.started)
        again.start(service_specs.mlflow_service(chosen), service_specs.webhook_service(chosen))
        Parts(chosen).registered()
        (row,) = parts.mlflow.list_webhooks()
        assert row.url == f"http://127.0.0.1:{chosen.webhook_port}/mlflow"


@pytest.mark.chaos
def test_an_mlflow_with_an_empty_database_is_told_again(parts: Parts, declared: str) -> None:
    parts.stop("mlflow")
    for file in parts.settings.home.glob("mlflow.db*"):
        file.unlink()
    _wait(lambda: not _answers(f"{parts.url}/health")["registered"], 30, "MLflow's end is noticed")
    parts.start(service_specs.mlflow_service(parts.settings))
    parts.registered()
    assert len(parts.mlflow.list_webhooks()) == 1
    _register_model(parts.mlflow)
    parts.mlflow.set_registered_model_alias(MODEL, "champion", "5")
    parts.asked(f"champion of {MODEL} → version 5")


def test_without_prefect_it_releases_all_the_same(parts: Parts, tmp_path: Path) -> None:
    chosen = parts.settings.model_copy(
        update={
            "home": tmp_path / "home",
            "mlflow_tracking_uri": service_specs.mlflow_service(parts.settings).address,
            "prefect_api_url": "http://127.0.0.1:9/api",
        }
    )
    parts.stop("webhook")
    alone = Parts(chosen)
    alone.start(service_specs.webhook_service(chosen))
    try:
        alone.registered()
        alone.leave_a_trial()
        log = service_specs.webhook_service(chosen).log
        _wait(lambda: "releasing without Prefect" in log.read_text(), 30, "it releases")
        assert "failed" not in log.read_text()
        assert len(parts.mlflow.list_webhooks()) == 2
    finally:
        alone.stop("webhook")
