"""ASGI middleware that refuses the requests of foreign web pages to a server on this machine.

A page whose host name resolves to 127.0.0.1 (DNS rebinding) has, to the browser, the same origin as
the server; only the Host header shows the difference. A page of another origin may send a request
without being able to read the answer; then the browser sends Origin or Sec-Fetch-Site, which
clients that are not browsers leave out. A form or a `fetch` without CORS cannot send a body as
JSON.
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FOREIGN_HOST = "The request is for another host than this one; use this server's own address."
FOREIGN_PAGE = "Requests of a page of another origin are refused."
NOT_JSON = "The body must be application/json."
CLOSED = "There is no such path here."
FORM = "Forms and plain text are not taken here; send application/json."

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Bodies that a page may send to another origin without a CORS preflight."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_REPEATED = "\0"
"""Stands for a header that came more than once, and equals none of its values."""
_POLICY_VIOLATION = 1008

Refusal = tuple[int, str]
"""Status and reason: 421: a foreign host, 403: a foreign page, 404: closed, 415: a foreign body."""


def loopback_hosts(port: int) -> frozenset[str]:
    """Return the Host headers that name a server on loopback."""
    names = ("127.0.0.1", "localhost", "[::1]")
    plain = names if port == 80 else ()  # browsers leave this one out
    return frozenset({*plain, *(f"{name}:{port}" for name in names)})


def plain_refusal(status: int, reason: str) -> ASGIApp:
    """Return the response of a refusal as a line of text."""
    headers = {"x-content-type-options": "nosniff", "connection": "close"}
    return PlainTextResponse(f"{reason}\n", status, headers)


@dataclass(frozen=True)
class OriginPolicy:
    """What a server accepts.

    Attributes:
        hosts: `host:port` of the server, in small letters; None for the loopback hosts of the port
            of the connection.
        open_paths: answered to everybody by GET and HEAD, such as a health check.
        only_json: whether a body must be JSON; else it may be anything but a form or text.
        form_paths: paths that take a form, which has its own CSRF token.
        no_links: prefixes of paths that no link of another site may open. A link may open any other
            path, as a page of its own.
        closed: prefixes of paths that nobody may use.
        websockets: whether the server has any.
        refuse: makes the response of a refusal.
    """

    hosts: frozenset[str] | None = None
    open_paths: frozenset[str] = frozenset()
    only_json: bool = False
    form_paths: frozenset[str] = frozenset()
    no_links: tuple[str, ...] = ("/",)
    closed: tuple[str, ...] = ()
    websockets: bool = False
    refuse: Callable[[int, str], ASGIApp] = plain_refusal


@dataclass(frozen=True)
class RequestHeaders:
    """The parts of a request that are checked; a header that is missing is None.

    Attributes:
        method: GET, POST, …; empty for a websocket.
        path: without the query, unquoted.
        host: its Host header.
        origin: its Origin header.
        site: Sec-Fetch-Site.
        fetch: Sec-Fetch-Mode and Sec-Fetch-Dest.
        media_type: of Content-Type, without parameters.
        has_body: whether a body follows.
    """

    method: str
    path: str
    host: str | None
    origin: str | None = None
    site: str | None = None
    fetch: tuple[str | None, str | None] = (None, None)
    media_type: str | None = None
    has_body: bool = False


def read_headers(scope: Scope) -> RequestHeaders:
    """Return what is checked of an ASGI connection."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        headers[name] = _REPEATED if name in headers else value.decode("latin-1").lower()
    content = headers.get("content-type")
    return RequestHeaders(
        method=scope.get("method", ""),
        path=scope["path"],
        host=headers.get("host"),
        origin=headers.get("origin"),
        site=headers.get("sec-fetch-site"),
        fetch=(headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")),
        media_type=None if content is None else content.partition(";")[0].strip(),
        has_body=headers.get("content-length", "0") != "0" or "transfer-encoding" in headers,
    )


def check_request(policy: OriginPolicy, request: RequestHeaders, port: int = 0) -> Refusal | None:
    """Return the status and the reason with which a request is refused, or None.

    Args:
        policy: of the server.
        request: its headers.
        port: of its connection; used if the policy names no hosts.
    """
    if request.method in ("GET", "HEAD") and request.path in policy.open_paths:
        return None
    hosts = loopback_hosts(port) if policy.hosts is None else policy.hosts
    if request.host not in hosts:
        return 421, FOREIGN_HOST
    if not _is_own_page(policy, request, hosts):
        return 403, FOREIGN_PAGE
    if _merge_slashes(request.path).startswith(policy.closed):
        return 404, CLOSED
    if request.path in policy.form_paths:
        return None
    return _check_body(policy, request)


def _is_own_page(policy: OriginPolicy, request: RequestHeaders, hosts: frozenset[str]) -> bool:
    """Whether the request is of one of our pages or no page, or a link that opens a page."""
    if request.origin is not None:
        # Another of our own names is cross-site to the browser, so Origin decides where it is sent.
        return request.origin in {f"http://{host}" for host in hosts}
    if request.site in (None, "same-origin", "none"):
        return True
    is_link = request.method == "GET" and request.fetch == ("navigate", "document")
    return is_link and not _merge_slashes(request.path).startswith(policy.no_links)


def _merge_slashes(path: str) -> str:
    return "/" + path.lstrip("/")


def _check_body(policy: OriginPolicy, request: RequestHeaders) -> Refusal | None:
    may_change = request.has_body or request.method not in _SAFE_METHODS
    if may_change and request.media_type in (*FORM_TYPES, _REPEATED):
        return 415, FORM
    if policy.only_json and request.has_body and request.media_type != "application/json":
        return 415, NOT_JSON
    return None


class OriginCheck:
    """ASGI middleware that passes on what the policy accepts, and refuses the rest.

    Args:
        app: gets what is passed on.
        policy: of the server.
    """

    def __init__(self, app: ASGIApp, policy: OriginPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        port = (scope.get("server") or ("", 0))[1] or 0
        refused = check_request(self._policy, read_headers(scope), port)
        if scope["type"] == "websocket" and (refused or not self._policy.websockets):
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        elif refused:
            await self._policy.refuse(*refused)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
