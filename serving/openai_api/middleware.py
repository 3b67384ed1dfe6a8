"""What lies around every request: its id, and how many there may be at a time."""

import re
import secrets

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.serving.openai_api.connection import error_response
from millrace.serving.openai_api.error_response import busy

HEADER = b"x-request-id"
VALID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
FREE = frozenset({"/health"})
"""Paths that are answered however much there is to do."""


class RequestIds:
    """Gives every request an id, the client's own if it sent a valid one, and every answer its id.

    Args:
        app: finds the id in `request.state.request_id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER, b"")
        request_id = given if VALID.fullmatch(given) else b"req_" + secrets.token_hex(16).encode()
        scope.setdefault("state", {})["request_id"] = request_id.decode()

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (HEADER, request_id)]
            await send(message)

        await self._app(scope, receive, with_id)


class AtMost:
    """Refuses requests while so many are under way.

    Args:
        app: answers the others.
        most: requests at a time.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in FREE:
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._most:
            refusal = busy(f"{self._most} requests are under way, which is the most here.")
            await error_response(refusal)(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way -= 1
