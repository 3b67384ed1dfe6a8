import asyncio
from typing import Any

import pytest

from flows.prefect_guard import Guard, refusal

PORT = 4200
HOST = {"host": f"127.0.0.1:{PORT}"}
JSON = {"content-type": "application/json", "content-length": "2"}


def status(method: str, path: str, headers: dict[str, str], kind: str = "http") -> int:
    refused = refusal(kind, method, path, headers, PORT)
    return 200 if refused is None else refused[0]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        JSON,
        {"content-type": "application/json; charset=utf-8", "content-length": "2"},
        {"host": f"LOCALHOST:{PORT}"},
        {"origin": f"http://localhost:{PORT}", "sec-fetch-site": "cross-site", **JSON},
        {"origin": f"http://127.0.0.1:{PORT}", "sec-fetch-site": "same-origin", **JSON},
        {"sec-fetch-site": "none"},
        {"content-length": "0"},
    ],
)
def test_clients_and_its_own_pages_are_let_in(headers: dict[str, str]) -> None:
    assert status("POST", "/api/deployments/filter", HOST | headers) == 200


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1"}, 421),
        ({"host": f"127.0.0.1:{PORT}, evil.example"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://evil.example", **JSON}, 403),
        ({"origin": "null", **JSON}, 403),
        ({"origin": "http://127.0.0.1:5000", **JSON}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"content-length": "2"}, 415),
        ({"transfer-encoding": "chunked"}, 415),
        ({"content-type": "text/plain", "content-length": "2"}, 415),
        ({"content-type": "application/x-www-form-urlencoded", "content-length": "2"}, 415),
        ({"content-type": "text/plain; application/json", "content-length": "2"}, 415),
    ],
)
def test_what_others_send_is_refused(headers: dict[str, str], expected: int) -> None:
    assert status("POST", "/api/deployments/bulk_delete", HOST | headers) == expected


@pytest.mark.parametrize("path", ["/api/health", "/api/ready"])
def test_health_is_open_to_everybody(path: str) -> None:
    foreign = {"host": "10.0.0.7:80", "origin": "http://evil.example"}
    assert status("GET", path, foreign) == 200
    assert status("POST", path, foreign) == 421
    assert status("GET", f"/api/variables/name{path}", foreign) == 421


@pytest.mark.parametrize(
    ("path", "destination", "expected"),
    [
        ("/runs", "document", 200),
        ("/runs", "iframe", 403),
        ("/api/admin/settings", "document", 403),
    ],
)
def test_a_link_from_elsewhere_leads_to_a_page_of_the_ui_only(
    path: str, destination: str, expected: int
) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    headers = HOST | link | {"sec-fetch-dest": destination}
    assert status("GET", path, headers) == expected


def test_a_websocket_of_a_foreign_page_is_closed_before_it_is_open() -> None:
    sent: list[Any] = []

    async def never(*_: Any) -> None:
        raise AssertionError("it was let in")

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    headers = [(b"host", b"127.0.0.1:4200"), (b"Origin", b"http://evil.example")]
    scope = {"type": "websocket", "path": "/api/events/in", "headers": headers}
    asyncio.run(Guard(never)(scope | {"server": ("127.0.0.1", PORT)}, receive, send))
    assert sent == ["websocket.close"]
