"""The receiver of MLflow's webhook and the watch: `python -m millrace.flows.triggers.webhook`.

MLflow announces every changed alias; when a champion has changed, the receiver releases at once.
MLflow keeps its events in memory and retries for some seconds only, so an event may be lost.
Therefore the watch checks every few seconds whether a release is due, also without a webhook.

The webhook is registered in MLflow once, and restored if it was changed or removed. An event that
occurs while MLflow or the receiver does not run is lost. So a release is requested whenever MLflow
answers again, or had lost the webhook.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse

from millrace.flows import tool_variables
from millrace.flows.console import WarnOnce, exit_on_error, first_line, log, set_up_logging
from millrace.flows.deployments.catch_up import home_id
from millrace.flows.services.service_specs import webhook_url
from millrace.flows.settings import LOOPBACK, Settings, load
from millrace.flows.triggers.arrivals_keeper import ArrivalsKeeper
from millrace.flows.triggers.client_metrics_publisher import ClientMetricsPublisher
from millrace.flows.triggers.replica_joiner import ReplicaJoiner
from millrace.flows.triggers.replica_scaler import ReplicaScaler
from millrace.flows.triggers.request_collector import RequestCollector
from millrace.flows.triggers.watch import PollingThread, Watch
from millrace.flows.triggers.webhook_delivery import Receiver
from millrace.models.common.errors import TransientError
from millrace.models.common.private_files import read_or_create_secret
from millrace.models.registry.tracking import check_reachable, client
from millrace.serving.http_server import run_server
from millrace.serving.origin_check import OriginCheck, OriginPolicy, loopback_hosts
from millrace.serving.replicas.files import read_bounds

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.webhook import Webhook, WebhookEvent, WebhookEventStr

EVENTS: "tuple[WebhookEventStr, ...]" = (
    "model_version_alias.created",
    "model_version_alias.deleted",
)
CHECK_SECONDS = 15.0
AWAY_SECONDS = 1.0
LAST_RELEASE_SECONDS = 5.0

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def mlflow_address(settings: Settings) -> str:
    """Return the address of the MLflow server that sends webhooks: the user's, or that of `up`."""
    own = f"http://{LOOPBACK}:{settings.mlflow_port}"
    return own if settings.is_mlflow_local else str(settings.mlflow_tracking_uri)


@dataclass(frozen=True)
class Subscription:
    """Millrace's webhook as it should be registered in MLflow.

    Attributes:
        name: the name that identifies it in MLflow.
        url: the URL that MLflow posts to.
        secret: the key of the deliveries' signatures.
    """

    name: str
    url: str
    secret: str = field(repr=False)

    @property
    def description(self) -> str:
        """The description in MLflow, with a digest of the secret, because MLflow hides secrets."""
        digest = hashlib.sha256(self.secret.encode()).hexdigest()[:12]
        return f"Releases at once what the alias champion says. Secret {digest}."

    def is_same(self, webhook: "Webhook") -> bool:
        """Return whether a webhook in MLflow equals this subscription."""
        events = {str(event) for event in webhook.events}
        ours = (self.url, self.description, set(EVENTS))
        return (webhook.url, webhook.description, events) == ours


def register_webhook(store: "MlflowClient", wanted: Subscription) -> bool:
    """Register the subscription in MLflow exactly once; return whether anything was changed.

    A webhook that a user has disabled stays disabled.
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
    """A thread that keeps the subscription registered in MLflow.

    Args:
        address: the address of the MLflow server.
        wanted: the subscription.
        catch_up: a function that is called with the reason when events may have been lost.
    """

    def __init__(self, address: str, wanted: Subscription, catch_up: Callable[[str], None]) -> None:
        super().__init__("registration", 0.0)
        self.is_registered = False
        self._address, self._wanted, self._catch_up = address, wanted, catch_up
        self._lost_events: str | None = "started"
        self._warning = WarnOnce(
            "cannot register the webhook in MLflow, so Millrace finds a changed alias only by its "
            "own checks every few seconds; error: %s"
        )

    def check(self) -> float:
        """Register the webhook if MLflow answers; return seconds until the next check."""
        try:
            check_reachable(self._address)
        except TransientError:
            self.is_registered = False
            self._lost_events = self._lost_events or "MLflow did not answer"
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
                log.info("MLflow sends changes of aliases to %s", self._wanted.url)
                self._lost_events = self._lost_events or "MLflow had lost the webhook"
        if self._lost_events:
            self._catch_up(self._lost_events)
            self._lost_events = None
        return CHECK_SECONDS


def create_app(
    receiver: Receiver,
    is_registered: Callable[[], bool],
    lifespan: Lifespan | None = None,
    port: int | None = None,
    is_watching: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """Return the web application.

    Args:
        receiver: the receiver of the deliveries.
        is_registered: a function that returns whether the webhook is registered in MLflow.
        lifespan: the context that starts and stops the threads beside the application.
        port: the application's port; if given, requests for other hosts and from web pages are
            refused.
        is_watching: a function that returns whether the watch works; if not, the health check
            fails.
    """

    async def health() -> Response:
        watching = is_watching()
        content = {"registered": is_registered(), "watching": watching}
        return JSONResponse(content, 200 if watching else 503)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    app.add_api_route("/mlflow", receiver.receive, methods=["POST"], response_model=None)
    if port is not None:
        policy = OriginPolicy(hosts=loopback_hosts(port), only_json=True)
        app.add_middleware(OriginCheck, policy=policy)
    return app


def serve(settings: Settings) -> None:
    """Receive and release until SIGTERM; a running release then gets a few seconds to end."""
    # Import everything that a release needs before there are threads, because threads that import
    # MLflow at the same time see it half initialized.
    import mlflow  # noqa: F401

    from millrace.flows.triggers.release_worker import Releaser, ReleaseWorker
    from millrace.tasks.release import ReleaseCheck

    secret = read_or_create_secret(settings.run / "webhook.secret", lambda: secrets.token_hex(32))
    releaser = Releaser(settings)

    def release(asked_by: str, models: list[str] | None) -> None:
        releaser.release(asked_by, models)
        watch.note_release(models)

    worker = ReleaseWorker(release)
    watch = Watch(ReleaseCheck(settings.installation).due, worker.request)
    registrar = Registrar(
        mlflow_address(settings),
        Subscription(f"millrace-{home_id(settings)}", webhook_url(settings), secret),
        lambda reason: worker.request(None, f"webhook: {reason}"),
    )

    threads = (
        registrar,
        watch,
        RequestCollector(settings.installation()),
        ArrivalsKeeper(settings.installation()),
        ClientMetricsPublisher(settings.installation()),
        *replica_threads(settings, lambda reason: worker.request(None, reason)),
    )

    @asynccontextmanager
    async def run_threads(_app: FastAPI) -> AsyncIterator[None]:
        for thread in threads:
            thread.start()
        yield
        for thread in reversed(threads):
            thread.stop()
        await asyncio.to_thread(worker.stop, LAST_RELEASE_SECONDS)

    app = create_app(
        Receiver(secret, worker.request),
        lambda: registrar.is_registered,
        run_threads,
        settings.webhook_port,
        lambda: watch.is_checking,
    )
    run_server(
        app,
        host=LOOPBACK,
        port=settings.webhook_port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )


def replica_threads(
    settings: Settings, request_release: Callable[[str], None]
) -> list[PollingThread]:
    """Return the threads that look after several replicas of Triton; none if there is one."""
    bounds = read_bounds(settings.run)
    if bounds.max == 1:
        return []
    from millrace.tasks.replicas import ReplicaLoad, ReplicaLook

    look = ReplicaLook(settings.installation)
    joiner = ReplicaJoiner(settings.run, look.at, request_release)
    if bounds.max == bounds.min:
        return [joiner]
    load = ReplicaLoad(settings.installation, bounds)
    return [joiner, ReplicaScaler(settings.run, bounds, load.measure)]


def main() -> None:
    """Serve with the settings of the environment."""
    with exit_on_error():
        settings = tool_variables.apply(load())
        set_up_logging()
        serve(settings)


if __name__ == "__main__":
    main()
