"""The client's side of a request: its body, whether it is still there, and what it is sent."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from millrace.serving.openai_api.error_response import Refusal

BODY_SECONDS = 20.0
SEND_SECONDS = 30.0
"""For which a client may take nothing of what it is sent."""
CLIENT_GONE = 499
"""nginx's status of a request whose client has left; nobody reads it."""

Result = TypeVar("Result")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def body_of(request: Request, most: int) -> bytes:
    """Read a body as far as it may go, and none of one that says itself that it is too large.

    Args:
        request: its body was not read yet.
        most: bytes.

    Raises:
        Refusal: 413 or 408.
        ClientGone: the client left.
    """
    too_large = Refusal(
        413, f"The body is larger than {most} bytes, the most here.", code="request_too_large"
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise too_large
    except TimeoutError:
        raise Refusal(
            408, f"The body did not come within {BODY_SECONDS:g} s.", code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


async def while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Do some work, and cancel it when the client leaves.

    Args:
        receive: of ASGI; the body was read.
        work: awaited to its end, also when it is cancelled.

    Raises:
        ClientGone: the client left before it was done.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def error_response(refusal: Refusal) -> JSONResponse:
    """Return an error as a response."""
    return JSONResponse(refusal.body(), refusal.status, refusal.headers())


class EventStream(Response):
    """Server-sent events, or an error's response if it comes before the first of them.

    The client's leaving cancels the events, and closes them before the request ends.

    Args:
        events: whole, each with the empty line at its end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await while_connected(receive, self._respond(scope, receive, send))
        except ClientGone:
            return

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except Refusal as refusal:
                await error_response(refusal)(scope, receive, send)
                return
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await _send_body(send, first)
            async for event in events:
                await _send_body(send, event)
        await _send_body(send, b"", more=False)


async def _send_body(send: Send, body: bytes, *, more: bool = True) -> None:
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": more})
    except TimeoutError:
        raise ClientGone from None
