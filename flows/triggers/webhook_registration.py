"""Keeping our webhook in MLflow's list: made once, right again after whatever became of it.

MLflow tells its events from memory, so one that came while either side was away is lost: whenever
MLflow is there again, or had lost our webhook, a release is asked for.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.flows.settings import LOOPBACK, Settings
from millrace.flows.triggers.release_worker import one_line
from millrace.models.common.errors import TransientError
from millrace.models.registry.tracking import check_reachable, client
from millrace.tasks.progress import log

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.webhook import Webhook, WebhookEvent, WebhookEventStr

EVENTS: "tuple[WebhookEventStr, ...]" = (
    "model_version_alias.created",
    "model_version_alias.deleted",
)
LOOK_SECONDS = 15.0
AWAY_SECONDS = 1.0


def mlflow_address(settings: Settings) -> str:
    """Return the server that tells of aliases: the one that was chosen, or that of `up`."""
    chosen = settings.mlflow_tracking_uri or ""
    if chosen.startswith(("http://", "https://")):
        return chosen
    return f"http://{LOOPBACK}:{settings.mlflow_port}"


@dataclass(frozen=True)
class Subscription:
    """Our webhook as it should be.

    Attributes:
        name: by which we know it again.
        url: where MLflow posts to.
        secret: what it signs with.
    """

    name: str
    url: str
    secret: str = field(repr=False)

    @property
    def description(self) -> str:
        """What people read; MLflow never shows the secret, so its digest tells which one it has."""
        digest = hashlib.sha256(self.secret.encode()).hexdigest()[:12]
        return f"Releases at once what the alias champion says. Secret {digest}."

    def is_told_by(self, webhook: "Webhook") -> bool:
        """Return whether MLflow's entry says the same."""
        events = {str(event) for event in webhook.events}
        told = (webhook.url, webhook.description, events)
        return told == (self.url, self.description, set(EVENTS))


def put_right(store: "MlflowClient", wanted: Subscription) -> bool:
    """Make MLflow's list hold the subscription once; return whether it had to be changed.

    One that a person has disabled stays disabled.
    """
    ours = [webhook for webhook in _webhooks(store) if webhook.name == wanted.name]
    for one_too_many in ours[1:]:
        store.delete_webhook(one_too_many.webhook_id)
    if ours and wanted.is_told_by(ours[0]):
        return False
    description, url = wanted.description, wanted.url
    events: list[WebhookEventStr | WebhookEvent] = [*EVENTS]
    if ours:
        known = ours[0].webhook_id
        store.update_webhook(known, None, description, url, events, wanted.secret)
    else:
        store.create_webhook(wanted.name, url, events, description, wanted.secret)
    return True


def _webhooks(store: "MlflowClient") -> "Iterator[Webhook]":
    token = None
    while True:
        page = store.list_webhooks(max_results=100, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


class Registrar:
    """A thread that keeps the subscription in MLflow.

    Args:
        address: of the MLflow server.
        wanted: the subscription.
        catch_up: called when events may have been lost.
    """

    def __init__(self, address: str, wanted: Subscription, catch_up: Callable[[str], None]) -> None:
        self.registered = False
        self._address, self._wanted, self._catch_up = address, wanted, catch_up
        self._away: str | None = "started"
        self._told = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="registration", daemon=True)

    def start(self) -> None:
        """Begin to look after the subscription."""
        self._thread.start()

    def end(self) -> None:
        """Look no more; does not wait."""
        self._ended.set()

    def _work(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            pause = self.look()

    def look(self) -> float:
        """Put the subscription right if MLflow is there; return seconds until the next look."""
        try:
            check_reachable(self._address)
        except TransientError:
            self.registered = False
            self._away = self._away or "MLflow was away"
            return AWAY_SECONDS
        try:
            changed = put_right(client(self._address), self._wanted)
        except Exception as error:
            self.registered = False
            self._tell(one_line(error))
        else:
            self.registered, self._told = True, ""
            if changed:
                log.info("MLflow tells its aliases to %s", self._wanted.url)
                self._away = self._away or "MLflow had lost the webhook"
        if self._away:
            self._catch_up(self._away)
            self._away = None
        return LOOK_SECONDS

    def _tell(self, reason: str) -> None:
        """Say once why MLflow does not take the subscription."""
        if reason != self._told:
            self._told = reason
            log.warning("MLflow does not take our webhook; the watch releases: %s", reason)
