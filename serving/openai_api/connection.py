"""The client's connection: read the body, detect a disconnect, and stream events."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from millrace.serving.openai_api.error_response import ApiError

BODY_SECONDS = 20.0
SEND_SECONDS = 30.0
"""How long a send may block while the client reads nothing."""
CLIENT_GONE = 499
"""nginx's status for a request whose client has disconnected; nobody receives this response."""

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client has disconnected."""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request, read only if its Content-Length is within the limit.

    Raises:
        ApiError: 413 if the body is too large, 408 if it is too slow.
        ClientGone: the client disconnected.
    """
    too_large = ApiError(
        413,
        f"The body is larger than {max_bytes} bytes, the limit of this server.",
        code="request_too_large",
    )
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(
            408, f"The body did not arrive within {BODY_SECONDS:g} s.", code="request_timeout"
        ) from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


async def run_while_connected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine, and cancel it when the client disconnects.

    Args:
        receive: the request's ASGI `receive`, from which the whole body has been read.
        work: the coroutine; it is awaited until it ends, even after a cancellation.

    Raises:
        ClientGone: the client disconnected before the coroutine ended.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events, or of the error that is raised before the first event.

    When the client disconnects, the generator of events is cancelled and closed before the request
    ends.

    Args:
        events: the encoded events; each is complete, with the empty line at its end.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await run_while_connected(receive, self._respond(scope, receive, send))
        except ClientGone:
            return

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except ApiError as error:
                await error.response()(scope, receive, send)
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
