import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from millrace.flows.triggers.webhook import (
    EVENTS,
    Registrar,
    Subscription,
    create_app,
    register_webhook,
)
from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    MAX_BYTES,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    Receiver,
    compute_signature,
)
from millrace.models.common.errors import TransientError

DATA = {"name": "digits", "alias": "champion", "version": "3"}
BODY = json.dumps({"entity": "model_version_alias", "action": "created", "data": DATA}).encode()
WANTED = Subscription("millrace-1", "http://127.0.0.1:8010/mlflow", "secret")


@pytest.fixture
def asked() -> list[tuple[str, str]]:
    return []


Call = Callable[..., httpx.Response]


@pytest.fixture
def call(asked: list[tuple[str, str]]) -> Call:
    receiver = Receiver("secret", lambda *wish: asked.append(wish))
    transport = httpx.ASGITransport(create_app(receiver, lambda: True))

    async def answer(method: str, path: str, **request: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **request)

    return lambda *words, **request: asyncio.run(answer(*words, **request))


def _headers(body: bytes = BODY, secret: str = "secret") -> dict[str, str]:
    at = str(int(time.time()))
    return {
        ID_HEADER: "one",
        TIMESTAMP_HEADER: at,
        SIGNATURE_HEADER: compute_signature(secret, "one", at, body),
    }


def test_a_delivery_asks_for_one_release_and_its_replay_for_none(
    call: Call, asked: list[tuple[str, str]]
) -> None:
    headers = _headers()
    answers = [call("POST", "/mlflow", content=BODY, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 409]
    assert asked == [("digits", "webhook: champion of digits → version 3")]


def test_a_forgery_does_not_use_up_the_id_of_the_delivery(
    call: Call, asked: list[tuple[str, str]]
) -> None:
    forged = call("POST", "/mlflow", content=BODY, headers=_headers(secret="guessed"))
    genuine = call("POST", "/mlflow", content=BODY, headers=_headers())
    assert (forged.status_code, genuine.status_code) == (401, 202)
    assert len(asked) == 1


def test_an_oversized_body_is_not_read_to_its_end(call: Call, asked: list[tuple[str, str]]) -> None:
    read = []

    async def endless() -> AsyncIterator[bytes]:
        while len(read) < 1000:
            read.append(2**10)
            yield b"x" * 2**10

    chunked = call("POST", "/mlflow", content=endless(), headers=_headers())
    assert sum(read) < 2 * MAX_BYTES
    declared = call("POST", "/mlflow", content=b"x" * (MAX_BYTES + 1), headers=_headers())
    assert (chunked.status_code, declared.status_code) == (413, 413)
    assert asked == []


def test_nothing_else_is_served(call: Call) -> None:
    assert call("GET", "/mlflow").status_code == 405
    statuses = {call("GET", path).status_code for path in ("/", "/docs", "/redoc", "/openapi.json")}
    assert statuses == {404}
    assert call("GET", "/health").json() == {"registered": True, "watching": True}


@pytest.mark.parametrize(("watching", "status"), [(True, 200), (False, 503)])
def test_a_receiver_whose_watch_looks_no_more_is_not_well(watching: bool, status: int) -> None:
    receiver = Receiver("secret", lambda *wish: None)
    app = create_app(receiver, lambda: True, is_watching=lambda: watching)

    async def health() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get("/health")

    assert asyncio.run(health()).status_code == status


class Store:
    """MLflow's list of webhooks, one to a page."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.calls: list[str] = []

    def list_webhooks(self, max_results: int, page_token: str | None) -> Any:
        at = int(page_token or 0)
        page = type("Page", (list,), {})(list(self.rows.values())[at : at + 1])
        page.token = str(at + 1) if at + 1 < len(self.rows) else None
        return page

    def create_webhook(
        self, name: str, url: str, events: list[str], description: str, secret: str
    ) -> None:
        self.calls.append("create")
        known = f"id-{len(self.calls)}"
        self.rows[known] = SimpleNamespace(
            webhook_id=known, name=name, url=url, events=events, description=description
        )

    def update_webhook(
        self, known: str, name: None, description: str, url: str, events: list[str], secret: str
    ) -> None:
        self.calls.append("update")
        vars(self.rows[known]).update(url=url, events=events, description=description)

    def delete_webhook(self, known: str) -> None:
        self.calls.append("delete")
        del self.rows[known]


@pytest.fixture
def store() -> Any:
    return Store()


def test_a_subscription_is_made_once(store: Any) -> None:
    store.create_webhook("another", "https://example.org", list(EVENTS), "", "")
    assert register_webhook(store, WANTED)
    assert not register_webhook(store, WANTED)
    assert store.calls == ["create", "create"]


@pytest.mark.parametrize(
    "changed",
    [
        Subscription("millrace-1", "http://127.0.0.1:9/mlflow", "secret"),
        Subscription("millrace-1", WANTED.url, "another secret"),
    ],
)
def test_another_url_or_secret_changes_the_one(store: Any, changed: Subscription) -> None:
    register_webhook(store, changed)
    assert register_webhook(store, WANTED)
    assert store.calls == ["create", "update"]
    assert not register_webhook(store, WANTED)


def test_one_too_many_is_removed(store: Any) -> None:
    for _ in range(3):
        store.create_webhook(WANTED.name, WANTED.url, list(EVENTS), WANTED.description, "")
    assert not register_webhook(store, WANTED)
    assert len(store.rows) == 1


def test_the_secret_is_not_shown() -> None:
    wanted = Subscription("name", "url", "s3cret")
    assert "s3cret" not in repr(wanted) + wanted.description


def test_a_release_is_asked_for_whenever_events_may_have_been_lost(
    monkeypatch: pytest.MonkeyPatch, store: Any
) -> None:
    asked: list[str] = []
    registrar = Registrar("http://mlflow", WANTED, asked.append)
    away: list[Exception] = []

    def check(address: str) -> None:
        if away:
            raise away.pop()

    monkeypatch.setattr("millrace.flows.triggers.webhook.check_reachable", check)
    monkeypatch.setattr("millrace.flows.triggers.webhook.client", lambda address: store)
    away.append(TransientError("MLflow starts"))
    for _ in range(3):
        registrar.check()
    assert (asked, registrar.is_registered) == (["started"], True)
    store.rows.clear()
    registrar.check()
    away.append(TransientError("MLflow restarts"))
    registrar.check()
    assert not registrar.is_registered
    for _ in range(2):
        registrar.check()
    assert asked == ["started", "MLflow had lost the webhook", "MLflow did not answer"]


def test_a_server_that_refuses_is_told_once_and_releases_go_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    registrar = Registrar("http://mlflow", WANTED, asked.append)
    monkeypatch.setattr("millrace.flows.triggers.webhook.check_reachable", lambda address: None)
    monkeypatch.setattr("millrace.flows.triggers.webhook.client", lambda address: object())
    monkeypatch.setattr("millrace.flows.triggers.webhook.log.propagate", True)
    for _ in range(2):
        registrar.check()
    assert asked == ["started"]
    assert not registrar.is_registered
    assert len(caplog.records) == 1
