import asyncio
import json

import httpx
import pytest
from fastapi import FastAPI

from flows.webhook import Receiver, application
from models.places import Endpoint
from serving.openai_api import reading
from serving.openai_api.app import app_of
from serving.openai_api.door import DoorSettings
from serving.openai_api.refusal import Refusal
from serving.own_requests import refusal_of

PORT = 8020
OWN = b"127.0.0.1:8020"


@pytest.mark.parametrize("host", [b"127.0.0.1", b"127.0.0.1:8020", b"localhost:1", b"LocalHost"])
@pytest.mark.parametrize("origin", [None, b"http://127.0.0.1:8020", b"http://localhost:8020"])
def test_requests_of_this_machine_pass(host, origin) -> None:
    assert refusal_of([host], [origin] if origin else [], PORT) is None


@pytest.mark.parametrize(
    "hosts",
    [[], [b""], [b"evil.example"], [b"127.0.0.1.evil.example"], [b"localhost@x"], [OWN] * 2],
)
def test_a_foreign_host_is_refused(hosts) -> None:
    refused = refusal_of(hosts, [], PORT)
    assert refused is not None
    assert refused[0] == 421


@pytest.mark.parametrize("origin", [b"http://evil.example", b"null", b"http://localhost:3000", b""])
def test_a_page_of_another_origin_is_refused(origin) -> None:
    refused = refusal_of([OWN], [origin], PORT)
    assert refused is not None
    assert refused[0] == 403


def receiver() -> FastAPI:
    return application(Receiver("secret", lambda *_: None), lambda: True, port=PORT)


def door(tmp_path) -> FastAPI:
    return app_of(DoorSettings(Endpoint(), tmp_path / "keys", loopback_port=PORT))


async def _ask(app: FastAPI, headers: dict[str, str]) -> httpx.Response:
    transport = httpx.ASGITransport(app)
    url = f"http://127.0.0.1:{PORT}"
    async with httpx.AsyncClient(transport=transport, base_url=url) as client:
        return await client.get("/health", headers=headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403), ({}, 200)],
)
def test_the_door_and_the_receiver_refuse_pages(tmp_path, headers, status) -> None:
    for app in (door(tmp_path), receiver()):
        found = asyncio.run(_ask(app, headers))
        assert found.status_code == status
    if status != 200:
        error = json.loads(asyncio.run(_ask(door(tmp_path), headers)).text)["error"]
        assert error["message"]


NESTED = b"[" * 1_000_000


def test_json_that_is_nested_too_deep_is_malformed_to_the_door() -> None:
    for body in (NESTED, b'{"a":' * 300_000):
        with pytest.raises(Refusal) as refused:
            reading.completion(body)
        assert refused.value.status == 400
