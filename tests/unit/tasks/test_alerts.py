"""What a webhook gets, and what happens when it does not answer."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.installation import Endpoint
from millrace.serving.release.outcome import Outcome
from millrace.tasks import alerts
from millrace.tasks.alerts import ALERT_URL, Event, alert_failure, post
from millrace.tasks.release import refusals


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    got: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            moved = self.path == "/moved"
            self.send_response(302 if moved else 204)
            if moved:
                self.send_header("location", "/other")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(ALERT_URL, f"http://127.0.0.1:{server.server_port}/secret")
    yield got
    server.shutdown()
    server.server_close()


def test_the_webhook_gets_the_event_with_words(webhook: list[dict[str, Any]]) -> None:
    post(Event("millrace.batch.late", "penguins", "it will be late", {"date": "2026-11-27"}))
    (body,) = webhook
    assert body.pop("time").endswith("+00:00")
    assert body == {
        "event": "millrace.batch.late",
        "model": "penguins",
        "text": "penguins: it will be late",
        "details": {"date": "2026-11-27"},
    }


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/secret", "http://[/secret", "file:///"])
def test_one_that_does_not_answer_is_a_warning_without_the_address(
    address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ALERT_URL, address)
    post(Event("e", "m", "t"))
    assert "the alert e was not sent" in caplog.text
    assert "secret" not in caplog.text


def test_a_redirect_is_not_followed(
    webhook: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = alerts.os.environ[ALERT_URL].replace("/secret", "/moved")
    monkeypatch.setenv(ALERT_URL, address)
    post(Event("e", "m", "t"))
    assert len(webhook) == 1
    assert "was not sent" in caplog.text


def test_a_new_refusal_is_told_once_and_a_server_that_is_away_is_not() -> None:
    def outcome(model: str, error: Any, *, known: bool = False) -> Outcome:
        return Outcome(Endpoint(), model, 3, 2, False, 0.0, error, known)

    refused = WorkError("version 3 of m was refused", seen="golden answers differ")
    (told,) = refusals(
        [
            outcome("m", refused),
            outcome("m", refused),
            outcome("old", refused, known=True),
            outcome("away", TransientError("no Triton answers")),
            outcome("good", None),
        ]
    )
    assert (told.model, told.details) == ("m", {"version": 3, "live": 2})
    assert told.text == "version 3 of m was refused: golden answers differ"


def test_a_scheduled_run_that_fails_is_told_and_one_of_a_person_is_not(
    webhook: list[dict[str, Any]],
) -> None:
    flow = SimpleNamespace(name="score_batch")
    state = SimpleNamespace(message="the disk is full")
    for deployment in (None, "d"):
        run = SimpleNamespace(
            name="brave-owl", deployment_id=deployment, parameters={"pipeline_file": "/x/mine.yaml"}
        )
        alert_failure(flow, run, state)
    (body,) = webhook
    assert (body["model"], body["event"]) == ("mine", "millrace.flow.failed")
    assert body["text"] == "mine: score_batch brave-owl failed: the disk is full"
