"""Keeps our webhook registered in MLflow: created once, and repaired whatever happened to it.

MLflow keeps its events in memory, so one that occurred while either side was away is lost: whenever
MLflow is back, or had lost our webhook, a release is requested.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millrace.flows.console import WarnOnce, first_line, log
from millrace.flows.settings import LOOPBACK, Settings
from millrace.flows.triggers.watch import PollingThread
from millrace.models.common.errors import TransientError
from millrace.models.registry.tracking import check_reachable, client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.webhook import Webhook, WebhookEvent, WebhookEventStr

EVENTS: "tuple[WebhookEventStr, ...]" = (
    "model_version_alias.created",
    "model_version_alias.deleted",
)
CHECK_SECONDS = 15.0
AWAY_SECONDS = 1.0


def mlflow_address(settings: Settings) -> str:
    """Return the server that sends the webhooks: the one that was chosen, or that of `up`."""
    own = f"http://{LOOPBACK}:{settings.mlflow_port}"
    return own if settings.is_mlflow_local else str(settings.mlflow_tracking_uri)


@dataclass(frozen=True)
class Subscription:
    """Our webhook as it should be.

    Attributes:
        name: identifies it in MLflow's list.
        url: the URL that MLflow posts to.
        secret: the key of its signatures.
    """

    name: str
    url: str
    secret: str = field(repr=False)

    @property
    def description(self) -> str:
        """The text for people, with a digest of the secret, which MLflow never shows."""
        digest = hashlib.sha256(self.secret.encode()).hexdigest()[:12]
        return f"Releases at once what the alias champion says. Secret {digest}."

    def is_same(self, webhook: "Webhook") -> bool:
        """Return whether MLflow's entry is the same."""
        events = {str(event) for event in webhook.events}
        ours = (self.url, self.description, set(EVENTS))
        return (webhook.url, webhook.description, events) == ours


def register_webhook(store: "MlflowClient", wanted: Subscription) -> bool:
    """Make MLflow's list hold the subscription once; return whether it had to be changed.

    One that a person has disabled stays disabled.
    """
    ours = [webhook for webhook in _list_webhooks(store) if webhook.name == wanted.name]
    for duplicate in ours[1:]:
        store.delete_webhook(duplicate.webhook_id)
    if ours and wanted.is_same(ours[0]):
        return False
    description, url = wanted.description, wanted.url
    events: list[WebhookEventStr | WebhookEvent] = [*EVENTS]
    if ours:
        known = ours[0].webhook_id
        store.update_webhook(known, None, description, url, events, wanted.secret)
    else:
        store.create_webhook(wanted.name, url, events, description, wanted.secret)
    return True


def _list_webhooks(store: "MlflowClient") -> "Iterator[Webhook]":
    token = None
    while True:
        page = store.list_webhooks(max_results=100, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


class Registrar(PollingThread):
    """A thread that keeps the subscription in MLflow.

    Args:
        address: of the MLflow server.
        wanted: the subscription.
        catch_up: called with the reason when events may have been lost.
    """

    def __init__(self, address: str, wanted: Subscription, catch_up: Callable[[str], None]) -> None:
        super().__init__("registration", 0.0)
        self.is_registered = False
        self._address, self._wanted, self._catch_up = address, wanted, catch_up
        self._lost_events: str | None = "started"
        self._warning = WarnOnce("MLflow does not take our webhook; the watch releases: %s")

    def check(self) -> float:
        """Register the webhook if MLflow answers; return seconds until the next check."""
        try:
            check_reachable(self._address)
        except TransientError:
            self.is_registered = False
            self._lost_events = self._lost_events or "MLflow was away"
            return AWAY_SECONDS
        try:
            has_changed = register_webhook(client(self._address), self._wanted)
        except Exception as error:
            self.is_registered = False
            self._warning.report(first_line(error))
        else:
            self.is_registered = True
            self._warning.report("")
            if has_changed:
                log.info("MLflow sends changed aliases to %s", self._wanted.url)
                self._lost_events = self._lost_events or "MLflow had lost the webhook"
        if self._lost_events:
            self._catch_up(self._lost_events)
            self._lost_events = None
        return CHECK_SECONDS
