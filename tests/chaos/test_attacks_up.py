"""Every port of `up` attacked by a process of another user and by pages of other origins.

Nothing may run, end or change, and a page may read nothing. Prefect's port, and what MLflow lets
another user do, have tests of their own: test_attacks_prefect.py, test_attacks_mlflow.py.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import httpx
import psutil
import pytest
from tritonclient.grpc import service_pb2

from millrace.flows.cli.api_keys import add_key
from millrace.flows.services import control
from millrace.flows.settings import PORTS
from millrace.serving.release.ledger import ledger_of
from millrace.serving.triton.client import connect
from tests.integration.attacks import (
    completions,
    delivery,
    mlflow_changes,
    mlflow_reads,
    triton_changes,
    triton_reads,
)
from tests.integration.foreign_page import (
    EVIL,
    UNREAD,
    Elsewhere,
    attack,
    elsewhere,
    is_refused_by_name,
    rebound,
    victim,
)
from tests.integration.mlflow_home import rows_of
from tests.integration.stranger import Ask, as_stranger, called_by_stranger
from tests.integration.up import NAME, Up, all_up

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux"),
    pytest.mark.timeout(600),
]

RUNNER = "runner"
"""Prefect's runner, in the process of the deployments: its runs tell it how they ended."""
WAYS_OF_A_PAGE = {
    *(("GET", ""), ("OPTIONS", ""), ("POST", ""), ("POST", "text/ping"), ("POST", "text/plain")),
    *(("POST", "multipart/form-data"), ("POST", "application/x-www-form-urlencoded")),
}
ROWS = 7
"""Of an attacker's request for inference; nobody else's has as many."""
RESTRICTED = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest(model_name=NAME),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name=NAME),
    "SystemSharedMemoryRegister": service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/r"),
    "SystemSharedMemoryUnregister": service_pb2.SystemSharedMemoryUnregisterRequest(),
    "CudaSharedMemoryUnregister": service_pb2.CudaSharedMemoryUnregisterRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(model_name=NAME),
    "LogSettings": service_pb2.LogSettingsRequest(),
}


@dataclass(frozen=True)
class Attacked:
    """Everything up, and what is sent to each port by somebody who even has the secrets.

    Attributes:
        up: the services.
        asked: by the setting of the port, or RUNNER.
    """

    up: Up
    asked: Mapping[str, list[Ask]]

    @property
    def owned(self) -> str:
        """The file that the code makes which attackers bring."""
        return str(self.up.settings.home / "owned")

    def port(self, name: str) -> int:
        if name != RUNNER:
            return int(getattr(self.up.settings, name))
        (port,) = (port for _, port in self.listening(("deployments",)))
        return port

    def listening(self, names: Sequence[str] = ()) -> set[tuple[str, int]]:
        """Return where services and their children listen: those named, or all."""
        services = [each for each in self.status() if not names or each.name in names]
        processes = [psutil.Process(each.pid) for each in services if each.pid is not None]
        children = [child for each in processes for child in each.children(recursive=True)]
        found = set()
        for each in (*processes, *children):
            with suppress(psutil.NoSuchProcess):  # a child may end at any time
                found |= {
                    (connected.laddr.ip.removeprefix("::ffff:"), connected.laddr.port)
                    for connected in each.net_connections("inet")
                    if connected.status == psutil.CONN_LISTEN
                }
        return found

    def status(self) -> tuple[control.ServiceStatus, ...]:
        return tuple(control.status(self.up.settings).services)

    def state(self) -> dict[str, Any]:
        """Return what must stay: processes, the registry, what is served, and who was answered."""
        installation = self.up.installation
        with connect(installation.triton[0]) as triton:
            stats = triton.get_inference_statistics(as_json=True)["model_stats"]
            (model,) = (each for each in stats if each["name"] == NAME)
            served = [
                triton.get_model_repository_index(as_json=True),
                # The watch asks now and then, one row at a time.
                [each for each in model["batch_stats"] if each["batch_size"] == str(ROWS)],
                triton.get_trace_settings(as_json=True),
                triton.get_log_settings(as_json=True),
                triton.get_system_shared_memory_status(as_json=True),
            ]
        return {
            "services": {each.name: (each.running, each.pid) for each in self.status()},
            "code ran": Path(self.owned).exists(),
            "mlflow": rows_of(installation.home),
            "triton": served,
            "releases": ledger_of(installation).releases(),
            "answers of the door": (installation.logs / "openai.log")
            .read_text()
            .count(" key page,"),
        }


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with all_up(tmp_path_factory.mktemp("attacked") / "home") as up:
        up.until_settled(1, 60)
        settings, token = up.settings, up.settings.local_triton.token
        key = add_key(settings, "page", 1000).secret
        owned = str(settings.home / "owned")
        triton = [*triton_changes(NAME, owned, token), *triton_reads(NAME, ROWS)]
        calls = [
            Ask("POST", f"/inference.GRPCInferenceService/{each}", "{}") for each in RESTRICTED
        ]
        secret = (settings.run / "webhook.secret").read_text()
        asked = {
            "mlflow_port": [*mlflow_changes(NAME, 2), *mlflow_reads(NAME)],
            "triton_http_port": triton,
            "triton_grpc_port": [*calls, *triton[:2]],
            "triton_metrics_port": [Ask("GET", "/metrics"), *triton[:2]],
            "webhook_port": [delivery(NAME, secret)],
            "openai_port": completions(NAME, key),
            RUNNER: [Ask("POST", "/", f"{'0' * 32}\n")],
        }
        yield Attacked(up, asked)


def test_up_listens_at_no_other_ports_than_these(attacked: Attacked) -> None:
    ports = {attacked.port(name) for name in (*PORTS, RUNNER)}
    assert attacked.listening() == {("127.0.0.1", port) for port in ports}
    assert {*attacked.asked, "prefect_port"} == {*PORTS, RUNNER}


def test_another_user_changes_nothing_without_the_secrets(attacked: Attacked) -> None:
    before, changes = attacked.state(), triton_changes(NAME, attacked.owned, "x")
    for name, asked, refused in (
        ("triton_http_port", changes, {400, 404}),
        ("triton_metrics_port", changes, {404}),
        ("webhook_port", [delivery(NAME, "x")], {401}),
        ("openai_port", completions(NAME, "mr-x"), {401}),
        (RUNNER, attacked.asked[RUNNER], {0}),
    ):
        answered = as_stranger(f"http://127.0.0.1:{attacked.port(name)}", asked)
        assert {status for status, _ in answered} <= refused, name
    for method, message in RESTRICTED.items():
        address = f"127.0.0.1:{attacked.port('triton_grpc_port')}"
        told = called_by_stranger(address, method, message.SerializeToString())
        assert "is restricted" in unquote(told), (method, told)
    assert attacked.state() == before


@pytest.fixture(scope="module")
def foreign() -> Iterator[Elsewhere]:
    with elsewhere() as found:
        yield found


@pytest.fixture(scope="module")
def page() -> Iterator["Page"]:
    with victim() as found:
        yield found


@pytest.mark.browser
def test_the_page_reaches_a_server_that_refuses_nothing(page: "Page", foreign: Elsewhere) -> None:
    with elsewhere() as naive:
        for name in (EVIL, "127.0.0.1"):
            naive.taken.clear()
            page.goto(f"http://{name}:{foreign.port}/")
            told = attack(page, f"http://127.0.0.1:{naive.port}", [Ask("DELETE", "/x", "{}")])
            deadline = time.monotonic() + 10
            while naive.taken != WAYS_OF_A_PAGE and time.monotonic() < deadline:
                time.sleep(0.1)  # the page knows of no answer to a ping
            assert naive.taken == WAYS_OF_A_PAGE
            assert ("blind blob", "opaque 0") in told


@pytest.mark.browser
@pytest.mark.parametrize("name", [*(each for each in PORTS if each != "prefect_port"), RUNNER])
def test_a_page_of_another_origin_changes_and_reads_nothing(
    attacked: Attacked, page: "Page", foreign: Elsewhere, name: str
) -> None:
    before, asked, port = attacked.state(), attacked.asked[name], attacked.port(name)
    for origin, target in ((EVIL, "127.0.0.1"), (EVIL, "localhost"), ("127.0.0.1", "127.0.0.1")):
        page.goto(f"http://{origin}:{foreign.port}/")
        told = attack(page, f"http://{target}:{port}", asked)
        assert {each for each in told if each[1] not in UNREAD} == set()
        assert not {way for way, what in told if way in ("img", "script") and what == "open"}
    told = rebound(page, port, asked)
    assert {each for each in told if not is_refused_by_name(each[1])} == set()
    assert attacked.state() == before


@pytest.mark.browser
def test_a_program_that_has_the_secrets_is_heard(attacked: Attacked) -> None:
    """So it was not for the requests that the page was refused, and none of its own was taken."""
    (event,) = attacked.asked["webhook_port"]
    url = f"http://127.0.0.1:{attacked.port('webhook_port')}{event.path}"
    taken = httpx.post(url, content=event.body, headers=event.headers, trust_env=False)
    assert taken.status_code == 202, taken.text
    before = attacked.state()["answers of the door"]
    for each in attacked.asked["openai_port"]:
        url = f"http://127.0.0.1:{attacked.port('openai_port')}{each.path}"
        asked = {"content": each.body, "headers": each.headers, "trust_env": False}
        answer = httpx.request(each.method, url, **asked)
        assert answer.status_code == (200 if each.method == "GET" else 404), answer.text
    assert attacked.state()["answers of the door"] == before + 2
