"""What stands before MLflow: requests that a page in a browser may not make are refused.

MLflow 3.17 looks at Host, and at Origin below /api/ and /ajax-api/ only, and takes every origin on
localhost, whatever its port. So here, for every path: the host is one of ours, and what changes
anything comes from our own pages or from no page at all. A browser says where a request is from by
Origin or Sec-Fetch-Site; a client that is no browser sends neither.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

READING = frozenset({"GET", "HEAD", "OPTIONS"})
HEALTH = frozenset({"/health", "/version"})
"""Asked by load balancers and probes under any name."""
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page may send to anybody; MLflow's API takes none of them."""
SIGN_UP_FORM = "/api/2.0/mlflow/users/create-ui"
"""The one form of MLflow, with a token of its own against forgery."""


@dataclass(frozen=True)
class Request:
    """What is judged of a request.

    Attributes:
        method: GET, POST, …
        path: without the query.
        host: its Host header.
        origin: its Origin header; empty without one.
        site: Sec-Fetch-Site; empty without one.
        content_type: without parameters, in small letters.
    """

    method: str
    path: str
    host: str
    origin: str = ""
    site: str = ""
    content_type: str = ""


def refusal(request: Request, hosts: frozenset[str]) -> str | None:
    """Return why a request is refused, or None.

    Args:
        request: the request.
        hosts: `host:port` of this server, as browsers and clients call it.
    """
    if request.path in HEALTH and request.method in READING:
        return None
    if request.host not in hosts:
        return "this server has another name; set the Host header to its address"
    if request.origin and request.origin not in {f"http://{host}" for host in hosts}:
        if request.method not in READING:
            return "a page of another origin may change nothing here"
    elif request.site in ("cross-site", "same-site") and request.method not in READING:
        return "a page of another site may change nothing here"
    changes = request.method not in READING and request.path != SIGN_UP_FORM
    if changes and request.content_type in FORMS:
        return "forms and plain text are not taken here; send application/json"
    return None


@dataclass(frozen=True)
class Guarded:
    """An ASGI application behind the guard.

    Attributes:
        app: the application.
        hosts: `host:port` of this server.
    """

    app: App
    hosts: frozenset[str]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer 403."""
        if scope["type"] == "websocket":  # MLflow has none
            await send({"type": "websocket.close", "code": 1008})
            return
        reason = refusal(_request(scope), self.hosts) if scope["type"] == "http" else None
        if reason is None:
            await self.app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"x-content-type-options", b"nosniff")]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": reason.encode()})


def _request(scope: Scope) -> Request:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:  # one that comes twice is neither of the two
        headers[name] = value if name not in headers else b"\0"
    text = {name: value.decode("latin-1") for name, value in headers.items()}
    content_type = text.get(b"content-type", "").partition(";")[0].strip().lower()
    return Request(
        scope["method"],
        scope["path"],
        text.get(b"host", ""),
        text.get(b"origin", ""),
        text.get(b"sec-fetch-site", ""),
        content_type,
    )
