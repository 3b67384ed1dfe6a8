"""ASGI middleware that refuses requests from foreign web pages to a server on this machine.

To a browser, a page whose host name resolves to 127.0.0.1 (DNS rebinding) has the same origin as
the server; only the Host header of its requests names the foreign host. A page of another origin
can send a request although it cannot read the answer. The browser marks such a request with Origin
or Sec-Fetch-Site; clients other than browsers send neither header. A form, or a `fetch` without
CORS, cannot send a JSON body.
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FOREIGN_HOST = "The Host header names another host than this server; use the server's own address."
FOREIGN_PAGE = "Requests from a web page of another origin are refused."
NOT_JSON = "The body must be application/json."
CLOSED = "This server does not offer this path."
FORM = "Forms and plain text are not accepted; send application/json."

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""Types of bodies that a page may send to another origin without a CORS preflight."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_REPEATED = "\0"
"""The value of a header that was sent more than once; it equals no real value."""
_POLICY_VIOLATION = 1008

Refusal = tuple[int, str]
"""Status and reason; 421: foreign host, 403: foreign page, 404: closed path, 415: body type."""


def loopback_hosts(port: int) -> frozenset[str]:
    """Return the values of the Host header that name a loopback server on this port."""
    names = ("127.0.0.1", "localhost", "[::1]")
    plain = names if port == 80 else ()  # browsers omit the default port
    return frozenset({*plain, *(f"{name}:{port}" for name in names)})


def plain_refusal(status: int, reason: str) -> ASGIApp:
    """Return the plain-text response to a refused request."""
    headers = {"x-content-type-options": "nosniff", "connection": "close"}
    return PlainTextResponse(f"{reason}\n", status, headers)


@dataclass(frozen=True)
class OriginPolicy:
    """Which requests a server accepts.

    Attributes:
        hosts: accepted Host headers, each `host:port` in lower case; None: the loopback hosts with
            the connection's port.
        open_paths: paths that anybody may GET or HEAD, such as a health check.
        only_json: whether a body must be JSON. If False, a body may have any type except a form or
            plain text.
        form_paths: paths that accept a form, which has its own CSRF token.
        no_links: prefixes of paths that a link on another site must not open. A link may open any
            other path as a top-level page.
        closed: prefixes of paths that are refused to everybody.
        websockets: whether the server accepts WebSocket connections.
        refuse: builds the response to a refused request from its status and reason.
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
    """The parts of a request that are checked. A missing header is None.

    Attributes:
        method: GET, POST, …; empty for a WebSocket.
        path: the path without the query, percent-decoded.
        host: the Host header.
        origin: the Origin header.
        site: the Sec-Fetch-Site header.
        fetch: the Sec-Fetch-Mode and Sec-Fetch-Dest headers.
        media_type: the Content-Type header without its parameters.
        has_body: whether the request has a body.
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
    """Return the parts of an ASGI connection that are checked."""
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
    """Return the status and the reason for a refusal; None if the request is accepted.

    Args:
        policy: the server's policy.
        request: the parts of the request to check.
        port: the port of the connection; used if the policy names no hosts.
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
    """Whether the request comes from the server's own pages or from no page, or opens a link."""
    if request.origin is not None:
        # If there is an Origin header, Sec-Fetch-Site does not count, because the browser reports
        # another of the server's own names (localhost, 127.0.0.1) as cross-site.
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
    """ASGI middleware that passes on the requests that a policy accepts and refuses all others.

    Args:
        app: the application that gets the accepted requests.
        policy: the server's policy.
    """

    def __init__(self, app: ASGIApp, policy: OriginPolicy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on to the application, or refuse it."""
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
