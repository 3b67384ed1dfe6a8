"""Tells people that something went wrong: an event of Prefect, and a POST to a webhook.

The webhook is `MILLRACE_ALERT_URL`. Its body is JSON:

    {"event": "millrace.release.refused", "model": "penguins", "time": "2026-11-27T02:00:00+00:00",
     "text": "penguins: version 3 was refused: …", "details": {…}}

`text` is what Slack and Mattermost show. An alert that cannot be sent is a warning in the log.
"""

import json
import os
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect.events import emit_event

from millrace.tasks.progress import log

ALERT_URL = "MILLRACE_ALERT_URL"
SECONDS = 5.0
REFUSED, FAILED = "millrace.release.refused", "millrace.flow.failed"
DRIFT, LATE = "millrace.batch.drift", "millrace.batch.late"
NOT_SCORED = "millrace.batch.dead_letters"
ONLINE_DRIFT = "millrace.online.drift"
FELL = "millrace.accuracy.fell"


@dataclass(frozen=True)
class Event:
    """What happened to a model; it can be written as JSON.

    Attributes:
        event: the kind, as `millrace.batch.drift`.
        model: the model, or the pipeline.
        text: what happened, in words.
        details: the figures.
    """

    event: str
    model: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the body for the webhook."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = f"{self.model}: {self.text}"
        named = {"event": self.event, "model": self.model, "time": now, "text": text}
        return {**named, "details": self.details}


def emit(event: Event) -> None:
    """Send an event to Prefect, if its server runs, and to the webhook, if there is one."""
    resource = {
        "prefect.resource.id": f"millrace.model.{event.model}",
        "prefect.resource.name": event.model,
    }
    emit_event(event.event, resource, payload={"text": event.text, **event.details})
    post(event)


def post(event: Event) -> None:
    """Send an event to the webhook of `MILLRACE_ALERT_URL`, if there is one."""
    url = os.environ.get(ALERT_URL)
    if not url:
        return
    body = json.dumps(event.body(), ensure_ascii=False, default=str).encode()
    headers = {"content-type": "application/json", "user-agent": "millrace"}
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS):
            pass
    except (OSError, ValueError) as error:  # the address may hold a secret, so it is not said
        log.warning("the alert %s was not sent to %s: %s", event.event, ALERT_URL, _reason(error))


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", "") or type(error).__name__)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the address is what the user wrote."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse."""


def alert_failure(flow: Any, flow_run: Any, state: Any) -> None:
    """Tell that a scheduled run failed: a hook of Prefect's flows.

    What a person started says it in the terminal.
    """
    if getattr(flow_run, "deployment_id", None) is None:
        return
    with suppress(Exception):  # a hook that fails would hide the failure itself
        file = flow_run.parameters.get("pipeline_file")
        name = Path(file).stem if file else flow.name
        text = f"{flow.name} {flow_run.name} failed: {state.message}"
        emit(Event(FAILED, name, text, {"flow": flow.name, "run": flow_run.name}))
