"""The web application: routes, and every error in OpenAI's form."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from millrace.models.common.errors import MillraceError
from millrace.serving.openai_api import request_body
from millrace.serving.openai_api.connection import CLIENT_GONE, ClientGone, error_response
from millrace.serving.openai_api.error_response import SERVER, Refusal
from millrace.serving.openai_api.middleware import AtMost, RequestIds
from millrace.serving.openai_api.server import Door, DoorSettings
from millrace.serving.origin_check import OwnRequests, Policy, own_hosts

log = logging.getLogger("millrace.openai_api")


def app_of(settings: DoorSettings) -> FastAPI:
    """Return the application; it connects to Triton when it starts, which may be later.

    Args:
        settings: how it stands.
    """

    @asynccontextmanager
    async def opened(app: FastAPI) -> AsyncIterator[None]:
        app.state.door = Door(settings)
        yield
        await app.state.door.close()

    app = FastAPI(openapi_url=None, lifespan=opened, redirect_slashes=False)
    app.add_api_route("/health", _health, methods=["GET"])
    app.add_api_route("/v1/models", _models, methods=["GET"], response_model=None)
    app.add_api_route("/v1/models/{model:path}", _model, methods=["GET"], response_model=None)
    app.add_api_route("/v1/completions", _completions, methods=["POST"], response_model=None)
    app.add_api_route("/v1/chat/completions", _chats, methods=["POST"], response_model=None)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(ClientGone, _gone)
    app.add_exception_handler(MillraceError, _told)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(AtMost, most=settings.max_requests)
    if settings.loopback_port is not None:
        policy = Policy(hosts=own_hosts(settings.loopback_port), refuse=_not_own)
        app.add_middleware(OwnRequests, policy=policy)
    app.add_middleware(RequestIds)
    return app


async def _health() -> dict[str, str]:
    return {"status": "ok"}


async def _models(request: Request) -> Response:
    return await _door(request).models(request)


async def _model(request: Request) -> Response:
    return await _door(request).model(request)


async def _completions(request: Request) -> Response:
    return await _door(request).answer(request, request_body.completion)


async def _chats(request: Request) -> Response:
    return await _door(request).answer(request, request_body.chat)


def _door(request: Request) -> Door:
    door: Door = request.app.state.door
    return door


def _not_own(status: int, message: str) -> Response:
    return error_response(Refusal(status, message, code="foreign_request"))


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    return error_response(error)


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return error_response(Refusal(error.status_code, message, code="unknown_url"))


async def _gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _told(_request: Request, error: Exception) -> Response:
    """Answer what is wrong here and told in the log, such as keys that cannot be read."""
    log.error("%s", " ".join(str(error).split()))
    return error_response(Refusal(500, "The server cannot answer; its log says why.", type=SERVER))


async def _failed(request: Request, _error: Exception) -> Response:
    """Answer what nobody foresaw; the server's log gets the exception itself."""
    response = error_response(Refusal(500, "The server failed at this request.", type=SERVER))
    response.headers["x-request-id"] = request.state.request_id
    return response
