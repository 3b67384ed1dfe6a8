"""What releases at once: the receiver of MLflow's webhook, and a watch.

`python -m millrace.flows.triggers.webhook` runs both.

MLflow tells it of every alias; when a champion has changed it releases at once. MLflow tells from
memory and only for some seconds, so this is a hint: the watch, every few seconds, needs none.
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

from millrace.flows.console import set_up_logging
from millrace.flows.deployments.catch_up import home_id
from millrace.flows.environment import apply
from millrace.flows.services.service_specs import errors_told, webhook_url
from millrace.flows.settings import LOOPBACK, Settings, load
from millrace.flows.triggers.release_worker import ReleaseWorker
from millrace.flows.triggers.watch import Watch
from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    MOST_BYTES,
    TIMESTAMP_HEADER,
    Seen,
    judge_delivery,
    too_large,
)
from millrace.flows.triggers.webhook_registration import Registrar, Subscription, mlflow_address
from millrace.models.common.private_files import read_or_create_secret
from millrace.serving.origin_check import OwnRequests, Policy, own_hosts

BODY_SECONDS = 5.0
LAST_RELEASE_SECONDS = 5.0

Want = Callable[[str | None, str], None]
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class Receiver:
    """Takes deliveries, and asks for a release when a champion has changed.

    Args:
        secret: what MLflow signs with.
        want: asks for a release: about which model, and why.
        clock: seconds since the epoch.
    """

    def __init__(self, secret: str, want: Want, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._want, self._clock = secret, want, clock
        self._seen = Seen(since=int(clock()))

    async def take(self, request: Request) -> Response:
        """Answer one delivery."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(request)
        except TimeoutError:
            return Response("the body is too slow\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)
        headers, now = request.headers, self._clock()
        verdict = judge_delivery(headers, body, now, self._secret, self._seen)
        if verdict.authentic:
            self._seen.add(headers[ID_HEADER], int(headers[TIMESTAMP_HEADER]), now)
        if verdict.change is not None:
            self._want(verdict.change.model, f"webhook: {verdict.change.text}")
        return Response(verdict.said + "\n", verdict.status)


async def _body(request: Request) -> bytes:
    """Read a body as far as it may go, and none of one that says itself that it is too large."""
    body = bytearray()
    if not too_large(request.headers, b""):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                break
    return bytes(body)


def application(
    receiver: Receiver,
    registered: Callable[[], bool],
    lifespan: Lifespan | None = None,
    port: int | None = None,
    watching: Callable[[], bool] = lambda: True,
) -> FastAPI:
    """Return the web application.

    Args:
        receiver: takes the deliveries.
        registered: tells whether MLflow knows where to deliver.
        lifespan: what works beside it for as long as it runs.
        port: where it listens; requests for other hosts and of pages are refused then.
        watching: tells whether the watch still looks; where it does not, this is not well.
    """

    async def health() -> Response:
        well = watching()
        said = {"registered": registered(), "watching": well}
        return JSONResponse(said, 200 if well else 503)

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    app.add_api_route("/health", health, methods=["GET"], response_model=None)
    app.add_api_route("/mlflow", receiver.take, methods=["POST"], response_model=None)
    if port is not None:
        policy = Policy(hosts=own_hosts(port), only_json=True)
        app.add_middleware(OwnRequests, policy=policy)
    return app


def serve(settings: Settings) -> None:
    """Receive and release until SIGTERM; the release under way then has a few seconds to end."""
    # everything that a release needs, once for all, and before there are threads: several that
    # import MLflow at a time see it half-made
    import mlflow  # noqa: F401

    from millrace.flows.triggers.webhook_release import Releaser
    from millrace.tasks.release import ReleaseCheck

    secret = read_or_create_secret(settings.run / "webhook.secret", lambda: secrets.token_hex(32))

    releaser = Releaser(settings)

    def release(asked_by: str, models: list[str] | None) -> None:
        releaser.release(asked_by, models)
        watch.released(models)

    releases = ReleaseWorker(release)
    watch = Watch(ReleaseCheck(settings.places).due, releases.want)
    wanted = Subscription(f"millrace-{home_id(settings)}", webhook_url(settings), secret)
    registrar = Registrar(
        mlflow_address(settings), wanted, lambda why: releases.want(None, f"webhook: {why}")
    )

    @asynccontextmanager
    async def at_work(_app: FastAPI) -> AsyncIterator[None]:
        registrar.start()
        watch.start()
        yield
        watch.end()
        registrar.end()
        await asyncio.to_thread(releases.end, LAST_RELEASE_SECONDS)

    app = application(
        Receiver(secret, releases.want),
        lambda: registrar.registered,
        at_work,
        settings.webhook_port,
        lambda: watch.looks,
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
    """Serve what the settings in the environment name."""
    with errors_told():
        settings = apply(load())
        set_up_logging()
        serve(settings)


if __name__ == "__main__":
    main()
