"""What stands before Prefect's web application: it lets in nobody's web page but its own.

Prefect asks for the login on every call of its API, but a browser is full of pages of others. They
could guess at it, hold websockets open, and read what needs no login. So a request must name this
server (DNS rebinding lets a page reach it under the page's own name), must come from its own pages
or from no page at all, and a body must say that it is JSON, which a form or a blind `fetch` cannot
say without asking first. The health checks are open to everybody.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

NAMES = ("127.0.0.1", "localhost")
OPEN = ("/api/health", "/api/ready")
OWN_PAGES = ("same-origin", "none")
_JSON = "application/json"
_NO_SUCH_HANDSHAKE = 1008


def refusal(
    kind: str, method: str, path: str, headers: Mapping[str, str], port: int
) -> tuple[int, str] | None:
    """Return the status and the reason to refuse a request with; None lets it in.

    Args:
        kind: `http` or `websocket`.
        method: of the request; a websocket's is empty.
        path: of the request.
        headers: their names in small letters.
        port: that it came to.
    """
    if kind == "http" and method in ("GET", "HEAD") and path in OPEN:
        return None
    own = {f"{name}:{port}" for name in NAMES}
    if headers.get("host", "").lower() not in own:
        return 421, f"this server is {' or '.join(sorted(own))}"
    if not _is_own_page(kind, method, path, headers, own):
        return 403, "a page of another origin may not ask here"
    if kind == "http" and _has_body(headers) and _media_type(headers) != _JSON:
        return 415, f"a body must be {_JSON}"
    return None


def _is_own_page(
    kind: str, method: str, path: str, headers: Mapping[str, str], own: set[str]
) -> bool:
    """Whether a page of ours asks, or none. A link from elsewhere may lead to a page of the UI."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None:
        return origin.lower() in {f"http://{host}" for host in own}
    if site is None or site in OWN_PAGES:
        return True
    opened = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    link = (kind, method, *opened) == ("http", "GET", "navigate", "document")
    return link and not path.startswith("/api")


def _has_body(headers: Mapping[str, str]) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class Guard:
    """An ASGI application before another.

    Args:
        app: gets what is let in.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refused = refusal(
            scope["type"],
            scope.get("method", ""),
            scope["path"],
            _headers(scope),
            (scope.get("server") or ("", 0))[1],
        )
        if refused is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _NO_SUCH_HANDSHAKE})
        else:
            await _answer(send, *refused)


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers; one that comes twice is none of ours, as its two values together."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        found[name] = f"{found[name]}, {text}" if name in found else text
    return found


async def _answer(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
