"""The receiver of MLflow's webhook and the watch: `python -m millrace.flows.triggers.webhook`.

MLflow announces every changed alias; when a champion has changed, the receiver releases at once.
MLflow keeps its events in memory and retries for some seconds only, so the webhook is a hint: the
watch checks every few seconds and needs none.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from millrace.flows import tool_variables
from millrace.flows.console import exit_on_error, set_up_logging
from millrace.flows.deployments.catch_up import home_id
from millrace.flows.services.service_specs import webhook_url
from millrace.flows.settings import LOOPBACK, Settings, load
from millrace.flows.triggers.release_worker import ReleaseWorker
from millrace.flows.triggers.watch import Watch
from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    MAX_BYTES,
    TIMESTAMP_HEADER,
    SeenDeliveries,
    check_delivery,
    is_too_large,
)
from millrace.flows.triggers.webhook_registration import Registrar, Subscription, mlflow_address
from millrace.models.common.private_files import read_or_create_secret
from millrace.serving.origin_check import OriginCheck, OriginPolicy, loopback_hosts

BODY_SECONDS = 5.0
LAST_RELEASE_SECONDS = 5.0

RequestRelease = Callable[[str | None, str], None]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class Receiver:
    """Receives deliveries, and requests a release when a champion has changed.

    Args:
        secret: the key of MLflow's signatures.
        request_release: called with the model and the reason.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        secret: str,
        request_release: RequestRelease,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret, self._request_release, self._clock = secret, request_release, clock
        self._seen = SeenDeliveries(since=int(clock()))

    async def receive(self, request: Request) -> Response:
        """Respond to one delivery."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(request)
        except TimeoutError:
            return Response("the body is too slow\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)
        headers, now = request.headers, self._clock()
        result = check_delivery(headers, body, now, self._secret, self._seen)
        if result.is_authentic:
            self._seen.add(headers[ID_HEADER], int(headers[TIMESTAMP_HEADER]), now)
        if result.model is not None:
            self._request_release(result.model, f"webhook: {result.change}")
        return Response(result.reason + "\n", result.status)


async def _read_body(request: Request) -> bytes:
    """Read a body up to the limit, and nothing of one that declares itself too large."""
    body = bytearray()
    if not is_too_large(request.headers, b""):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BYTES:
                break
    return bytes(body)


def create_app(
    receiver: Receiver,
    is_registered: Callable[[], bool],
    lifespan: Lifespan | None = None,
    port: int | None = None,
    is_watching: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """Return the web application.

    Args:
        receiver: receives the deliveries.
        is_registered: returns whether MLflow knows where to deliver.
        lifespan: starts and stops what runs beside the application.
        port: where it listens; requests for other hosts and from web pages are refused then.
        is_watching: returns whether the watch works; if not, the health check fails.
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
    """Receive and release until SIGTERM; a running release then has a few seconds to end."""
    # Import all that a release needs once, and before there are threads: threads that import MLflow
    # at the same time see it half initialized.
    import mlflow  # noqa: F401

    from millrace.flows.triggers.webhook_release import Releaser
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

    @asynccontextmanager
    async def run_threads(_app: FastAPI) -> AsyncIterator[None]:
        registrar.start()
        watch.start()
        yield
        watch.stop()
        registrar.stop()
        await asyncio.to_thread(worker.stop, LAST_RELEASE_SECONDS)

    app = create_app(
        Receiver(secret, worker.request),
        lambda: registrar.is_registered,
        run_threads,
        settings.webhook_port,
        lambda: watch.is_checking,
    )
    uvicorn.run(
        app,
        host=LOOPBACK,
        port=settings.webhook_port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=2,
    )


def main() -> None:
    """Serve with the settings of the environment."""
    with exit_on_error():
        settings = tool_variables.apply(load())
        set_up_logging()
        serve(settings)


if __name__ == "__main__":
    main()
