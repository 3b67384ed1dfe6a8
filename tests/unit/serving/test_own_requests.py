"""What a page in a browser may ask of each server of this machine, and what others may."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from millrace.flows.services import mlflow_server, prefect_server
from millrace.flows.triggers import webhook
from millrace.flows.triggers.webhook_delivery import Receiver
from millrace.models.common.installation import Endpoint
from millrace.serving.openai_api import request_body
from millrace.serving.openai_api.app import create_app
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.request_handler import ServerSettings
from millrace.serving.origin_check import (
    OriginCheck,
    OriginPolicy,
    check_request,
    loopback_hosts,
    read_headers,
)

PORT = 4200
OWN = f"127.0.0.1:{PORT}"
PREFECT = prefect_server.POLICY
MLFLOW = mlflow_server.request_policy(PORT)
DOOR = OriginPolicy(hosts=loopback_hosts(PORT))
RECEIVER = replace(DOOR, only_json=True)
EVERY = {"prefect": PREFECT, "mlflow": MLFLOW, "door": DOOR, "receiver": RECEIVER}
JSON = {"content-type": "application/json", "content-length": "2"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
VARIANT = "application/x-www-form-urlencoded"

Headers = Mapping[str, str | list[str] | None]


def scope(method: str, path: str, headers: Headers, kind: str = "http") -> Scope:
    """Return a connection to port 4200; None leaves a header out, a list sends it so often."""
    raw = []
    for name, value in ({"host": OWN} | dict(headers)).items():
        values = value if isinstance(value, list) else [value]
        raw += [(name.encode(), each.encode()) for each in values if each is not None]
    server = ("127.0.0.1", PORT)
    return {"type": kind, "method": method, "path": path, "headers": raw, "server": server}


def status(policy: OriginPolicy, method: str, path: str, headers: Headers) -> int:
    refused = check_request(policy, read_headers(scope(method, path, headers)), PORT)
    return 200 if refused is None else refused[0]


@pytest.fixture(params=EVERY)
def policy(request: pytest.FixtureRequest) -> OriginPolicy:
    return EVERY[request.param]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        JSON,
        {"content-type": "application/json; charset=utf-8", "content-length": "2"},
        {"content-type": "Application/JSON", "content-length": "2"},
        {"host": f"localhost:{PORT}"},
        {"host": f"LocalHost:{PORT}"},
        {"host": f"[::1]:{PORT}", "origin": f"http://[::1]:{PORT}"},
        {"origin": f"http://127.0.0.1:{PORT}"},
        {"origin": f"http://localhost:{PORT}", "host": f"localhost:{PORT}", **JSON},
        {"origin": f"http://localhost:{PORT}", "sec-fetch-site": "cross-site", **JSON},
        {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin", **JSON},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"content-length": "0"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_clients_and_its_own_pages_are_let_in(
    policy: OriginPolicy, method: str, headers: Headers
) -> None:
    assert status(policy, method, "/api/deployments/filter", headers) == 200


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "evil.example",
        f"evil.example:{PORT}",
        f"127.0.0.1.evil.example:{PORT}",
        f"localhost@x:{PORT}",
        "127.0.0.1",
        "LocalHost",
        "localhost:1",
        f"{OWN}, evil.example",
        [OWN, OWN],
        ["evil.example", OWN],
    ],
    ids=str,
)
def test_a_foreign_host_is_refused(policy: OriginPolicy, host: str | list[str] | None) -> None:
    for path in ("/api/deployments/bulk_delete", "/graphql", "/"):
        assert status(policy, "POST", path, {"host": host, **JSON}) == 421
    assert status(policy, "GET", "/", {"host": host}) == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:5000"},
        {"origin": "http://localhost:8888"},
        {"origin": f"https://{OWN}"},
        {"origin": [f"http://{OWN}", f"http://{OWN}"]},
        {"origin": [f"http://{OWN}", "http://evil.example"]},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": ["none", "none"]},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/api/2.0/mlflow/x", "/graphql", "/v1/traces", "/"])
def test_a_foreign_page_neither_changes_nor_reads(
    policy: OriginPolicy, path: str, headers: Headers
) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "GET", "HEAD", "OPTIONS"):
        assert status(policy, method, path, {**JSON, **headers}) == 403


@pytest.mark.parametrize("kind", [VARIANT, "multipart/form-data", "text/plain"])
def test_what_a_page_may_send_without_asking_is_no_body(policy: OriginPolicy, kind: str) -> None:
    for content_type in (
        kind,
        f"{kind}; application/json",
        kind.upper(),
        [JSON["content-type"]] * 2,
    ):
        headers = {"content-type": content_type, "content-length": "2"}
        assert status(policy, "POST", "/api/x", headers) == 415
    assert status(policy, "POST", "/api/x", {"content-type": kind}) == 415


@pytest.mark.parametrize(
    "headers",
    [
        {"content-length": "2"},
        {"transfer-encoding": "chunked"},
        {"content-type": "application/octet-stream", "content-length": "2"},
    ],
    ids=str,
)
def test_a_body_is_json_where_nothing_else_is_needed(headers: Headers) -> None:
    found = {name: status(policy, "PUT", "/api/x", headers) for name, policy in EVERY.items()}
    assert found == {"prefect": 415, "mlflow": 200, "door": 200, "receiver": 415}


def test_mlflows_own_form_is_taken_from_its_own_page_only() -> None:
    variant = {"content-type": VARIANT, "content-length": "2"}
    assert status(MLFLOW, "POST", mlflow_server.SIGN_UP_FORM, variant) == 200
    foreign = {**variant, "origin": "http://evil.example"}
    assert status(MLFLOW, "POST", mlflow_server.SIGN_UP_FORM, foreign) == 403


@pytest.mark.parametrize("path", ["/config", "/message", "/sessions/1/stream", "x"])
@pytest.mark.parametrize("lead", ["", "/", "//"])
def test_mlflows_assistant_is_there_for_nobody(lead: str, path: str) -> None:
    whole = f"{lead}/ajax-api/3.0/mlflow/assistant{path}"
    assert {status(MLFLOW, method, whole, JSON) for method in ("GET", "PUT", "POST")} == {404}


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        (PREFECT, "/api/health"),
        (PREFECT, "/api/ready"),
        (MLFLOW, "/health"),
        (MLFLOW, "/version"),
    ],
)
def test_health_is_open_to_everybody(policy: OriginPolicy, path: str) -> None:
    foreign = {"host": "10.0.0.7:80", "origin": "http://evil.example"}
    assert status(policy, "GET", path, foreign) == 200
    assert status(policy, "GET", path, {"host": "a-load-balancer"}) == 200
    assert status(policy, "POST", path, foreign) == 421
    assert status(policy, "POST", path, {"origin": "http://evil.example"}) == 403
    assert status(policy, "GET", f"/api/variables/name{path}", foreign) == 421


@pytest.mark.parametrize(
    ("policy", "path", "changed", "expected"),
    [
        (PREFECT, "/runs", {}, 200),
        (PREFECT, "/runs", {"sec-fetch-dest": "iframe"}, 403),
        (PREFECT, "/runs", {"sec-fetch-mode": "no-cors"}, 403),
        (PREFECT, "/runs", {"sec-fetch-dest": ["document", "document"]}, 403),
        (PREFECT, "/api/admin/settings", {}, 403),
        (PREFECT, "//api/admin/settings", {}, 403),
        (MLFLOW, "/", {}, 200),
        (MLFLOW, "/", {"sec-fetch-dest": "iframe"}, 403),
        (MLFLOW, "/signup", {}, 200),
        (MLFLOW, "/get-artifact", {}, 403),
        (MLFLOW, "/model-versions/get-artifact", {}, 403),
        (MLFLOW, "/api/2.0/mlflow/x", {}, 403),
        (MLFLOW, "/ajax-api/2.0/mlflow/x", {}, 403),
        (DOOR, "/", {}, 403),
        (DOOR, "/v1/models", {}, 403),
        (RECEIVER, "/health", {}, 403),
    ],
)
def test_a_link_from_elsewhere_leads_to_a_page_of_the_ui_only(
    policy: OriginPolicy, path: str, changed: Headers, expected: int
) -> None:
    assert status(policy, "GET", path, {**LINK, **changed}) == expected
    assert status(policy, "POST", path, {**LINK, **changed}) == 403


def test_the_port_that_browsers_leave_out_is_ours() -> None:
    assert "localhost" in loopback_hosts(80)
    assert "localhost" not in loopback_hosts(PORT)


def told_to_socket(policy: OriginPolicy, headers: Headers) -> list[str]:
    """Return the messages that a websocket gets; `accept` is the application's."""
    sent: list[str] = []

    async def accept(scope: Scope, receive: Receive, send: Send) -> None:
        sent.append("accept")

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    opened = scope("", "/api/events/in", headers, "websocket")
    asyncio.run(OriginCheck(accept, policy)(opened, receive, send))
    return sent


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"host": f"evil.example:{PORT}"},
        {"sec-fetch-site": "cross-site", **LINK},
    ],
    ids=str,
)
def test_a_websocket_of_a_foreign_page_is_closed_before_it_is_open(headers: Headers) -> None:
    assert told_to_socket(PREFECT, headers) == ["websocket.close"]


def test_websockets_are_let_in_where_there_are_some() -> None:
    assert told_to_socket(PREFECT, {}) == ["accept"]
    assert told_to_socket(PREFECT, {"origin": f"http://{OWN}"}) == ["accept"]
    for without in (MLFLOW, DOOR, RECEIVER):
        assert told_to_socket(without, {}) == ["websocket.close"]


def receiver() -> FastAPI:
    return webhook.create_app(Receiver("secret", lambda *_: None), lambda: True, port=PORT)


def door(tmp_path: Path) -> FastAPI:
    return create_app(ServerSettings(Endpoint(), tmp_path / "keys", loopback_port=PORT))


async def _ask(app: Any, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{OWN}") as client:
        return await client.get("/health", headers=headers)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403), ({}, 200)],
)
def test_the_door_and_the_receiver_refuse_pages(
    tmp_path: Path, headers: dict[str, str], expected: int
) -> None:
    for app in (door(tmp_path), receiver()):
        found = asyncio.run(_ask(app, headers))
        assert found.status_code == expected
    if expected != 200:
        error = json.loads(asyncio.run(_ask(door(tmp_path), headers)).text)["error"]
        assert error["message"]


def test_a_refusal_is_a_line_of_text_and_ends_the_connection() -> None:
    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("it was let in")

    found = asyncio.run(_ask(OriginCheck(never, PREFECT), {"Origin": "null"}))
    assert (found.status_code, found.headers["connection"]) == (403, "close")
    assert found.headers["x-content-type-options"] == "nosniff"
    assert found.text.endswith(".\n")


NESTED = b"[" * 1_000_000


def test_json_that_is_nested_too_deep_is_malformed_to_the_door() -> None:
    for body in (NESTED, b'{"a":' * 300_000):
        with pytest.raises(ApiError) as refused:
            request_body.read_completion(body)
        assert refused.value.status == 400
