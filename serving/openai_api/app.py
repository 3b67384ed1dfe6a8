"""The OpenAI-compatible server: `python -m millrace.serving.openai_api.app --home .millrace`.

Builds the web application from its routes, exception handlers and middleware.
"""

import argparse
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Endpoint
from millrace.serving.http_server import run_server
from millrace.serving.openai_api.api_key import KEYS_FILE
from millrace.serving.openai_api.api_pages import ApiPages
from millrace.serving.openai_api.connection import CLIENT_GONE, ClientGone
from millrace.serving.openai_api.error_response import SERVER, ApiError, overloaded
from millrace.serving.openai_api.model_catalog import ModelCatalog
from millrace.serving.openai_api.rate_limit import RateLimiter
from millrace.serving.openai_api.request_handler import RequestHandler, ServerSettings
from millrace.serving.openai_api.row_requests import RowHandler
from millrace.serving.origin_check import OriginCheck, OriginPolicy, loopback_hosts

LOOPBACK = "127.0.0.1"
PORT = 8020
HEADER_BYTES = 16 * 2**10
SHUTDOWN_SECONDS = 5
"""Time for the answers in flight to end when the server stops."""
REQUEST_ID = b"x-request-id"
VALID_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
UNLIMITED_PATHS = frozenset({"/health"})
"""Paths that are exempt from the limit on requests in flight."""

log = logging.getLogger("millrace.openai_api")


def create_app(settings: ServerSettings) -> FastAPI:
    """Return the application. It connects to Triton when it starts, not in this call."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Catalog and handler are created here because their connections belong to this event loop.
        catalog = ModelCatalog(settings.triton, time.monotonic, time.time)
        limiter = RateLimiter(time.monotonic)
        handler = RequestHandler(settings, catalog, limiter)
        rows = RowHandler(
            *(catalog, settings.triton.grpc, handler.authenticate, limiter),
            settings.max_body_bytes,
        )
        pages = ApiPages(rows, handler.authenticate)
        for path, method, endpoint in (
            ("/v1/models", "GET", handler.list_models),
            ("/v1/models/{model:path}", "GET", handler.describe_model),
            ("/v1/completions", "POST", handler.complete),
            ("/v1/chat/completions", "POST", handler.chat),
            ("/v1/models/{model}:predict", "POST", rows.predict),
            ("/openapi.json", "GET", pages.description),
            ("/docs", "GET", pages.page),
        ):
            app.add_api_route(path, endpoint, methods=[method], response_model=None)
        yield
        await rows.close()
        await handler.close()
        await catalog.close()

    app = FastAPI(
        openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False
    )
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_exception_handler(ApiError, _answer_api_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_exception_handler(MillraceError, _answer_own_error)
    app.add_exception_handler(Exception, _answer_unexpected)
    app.add_middleware(RequestLimit, max_requests=settings.max_requests)
    if settings.loopback_port is not None:
        policy = OriginPolicy(loopback_hosts(settings.loopback_port), refuse=_foreign_request)
        app.add_middleware(OriginCheck, policy=policy)
    app.add_middleware(RequestIds)
    return app


async def _health() -> dict[str, str]:
    return {"status": "ok"}


def _foreign_request(status: int, message: str) -> Response:
    return ApiError(status, message, code="foreign_request").response()


async def _answer_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return ApiError(error.status_code, message, code="unknown_url").response()


async def _answer_nobody(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _answer_own_error(_request: Request, error: Exception) -> Response:
    """Log an error of this server, such as an unreadable key file, and answer 500."""
    log.error("%s", " ".join(str(error).split()))
    return ApiError(
        500, "The server has an error; its log has the details.", type=SERVER
    ).response()


async def _answer_unexpected(request: Request, _error: Exception) -> Response:
    """Answer 500 after an unexpected exception, which uvicorn logs."""
    response = ApiError(500, "The server failed to process this request.", type=SERVER).response()
    response.headers["x-request-id"] = request.state.request_id
    return response


class RequestIds:
    """Middleware that gives each request an id, and returns the id in the header `x-request-id`.

    If the client sends a valid id, that id is used.

    Args:
        app: the application; it finds the id in `request.state.request_id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its id, and add the id to the response."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(REQUEST_ID, b"")
        is_valid = VALID_REQUEST_ID.fullmatch(given)
        request_id = given if is_valid else b"req_" + secrets.token_hex(16).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (REQUEST_ID, request_id)]
            await send(message)

        await self._app(scope, receive, send_with_id)


class RequestLimit:
    """Middleware that refuses requests while too many are in flight.

    Args:
        app: the application that answers the accepted requests.
        max_requests: the largest number of requests in flight.
    """

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app, self._max_requests = app, max_requests
        self._in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in UNLIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        if self._in_flight >= self._max_requests:
            error = overloaded(
                f"{self._max_requests} requests are in flight, the limit of this server."
            )
            await error.response()(scope, receive, send)
            return
        self._in_flight += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_flight -= 1


def serve(settings: ServerSettings, *, host: str = LOOPBACK, port: int = PORT) -> None:
    """Serve until SIGTERM.

    Args:
        settings: the server's settings.
        host: the address to bind. The server has no TLS, so put a proxy in front of any address
            other than loopback.
        port: the port to bind.
    """
    run_server(
        create_app(settings),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server with the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m millrace.serving.openai_api.app", description=__doc__
    )
    parser.add_argument(
        "--home", type=Path, required=True, help="MILLRACE_HOME, the folder with the API keys"
    )
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--triton-host", default=LOOPBACK)
    parser.add_argument("--triton-grpc-port", type=int, default=8001)
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("millrace")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    endpoint = Endpoint(options.triton_host, grpc_port=options.triton_grpc_port)
    own_port = options.port if options.host == LOOPBACK else None
    settings = ServerSettings(endpoint, options.home / KEYS_FILE, loopback_port=own_port)
    serve(settings, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
