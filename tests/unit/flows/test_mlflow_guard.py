from dataclasses import replace

import pytest

from flows.mlflow_guard import SIGN_UP_FORM, Request, refusal

HOSTS = frozenset({"127.0.0.1:5000", "localhost:5000"})
WRITE = Request("POST", "/api/2.0/mlflow/x", "127.0.0.1:5000", content_type="application/json")


@pytest.mark.parametrize(
    "change",
    [
        {"host": "evil.example"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "http://localhost:8888"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:5000"},
        {"site": "cross-site"},
        {"site": "same-site"},
        {"content_type": "text/plain"},
        {"content_type": "multipart/form-data"},
        {"path": "/graphql", "origin": "http://localhost:8888"},
        {"path": "/v1/traces", "origin": "http://localhost:8888"},
        {"path": "/health", "origin": "http://evil.example"},
    ],
    ids=str,
)
def test_what_a_page_may_send_is_refused(change: dict[str, str]) -> None:
    assert refusal(WRITE, HOSTS) is None
    assert refusal(replace(WRITE, **change), HOSTS) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"host": "localhost:5000", "origin": "http://localhost:5000", "site": "same-origin"},
        {"method": "GET", "site": "cross-site"},  # a link
        {"method": "PUT", "content_type": "application/octet-stream"},
        {"method": "GET", "path": "/health", "host": "a-load-balancer"},
        {"path": SIGN_UP_FORM, "content_type": "application/x-www-form-urlencoded"},
    ],
    ids=str,
)
def test_its_own_page_and_clients_are_let_in(change: dict[str, str]) -> None:
    assert refusal(replace(WRITE, **change), HOSTS) is None
