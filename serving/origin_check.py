"""Refuses what a page in a browser sends to a server of this machine; every ASGI server has it.

A page whose name its owner lets point to 127.0.0.1 (DNS rebinding) is, for the browser, of the same
origin as the server: only the Host header tells. A page of another origin may send without reading
the answer; the browser says where such a request is from by Origin or Sec-Fetch-Site, and a client
that is no browser sends neither. A form or a blind `fetch` cannot say that its body is JSON.
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

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page may send to anybody without asking first."""
_READING = ("GET", "HEAD", "OPTIONS")
_DOUBLED = "\0"
"""Stands for a header that came more than once: it is neither of its values."""
_POLICY_VIOLATION = 1008

Refusal = tuple[int, str]
"""Status and reason: 421: a foreign host, 403: a foreign page, 404: closed, 415: a foreign body."""


def own_hosts(port: int) -> frozenset[str]:
    """Return what a server on loopback is called in a Host header."""
    names = ("127.0.0.1", "localhost", "[::1]")
    plain = names if port == 80 else ()  # browsers leave this one out
    return frozenset({*plain, *(f"{name}:{port}" for name in names)})


def plain_refusal(status: int, reason: str) -> ASGIApp:
    """Return the response of a refusal as a line of text."""
    headers = {"x-content-type-options": "nosniff", "connection": "close"}
    return PlainTextResponse(f"{reason}\n", status, headers)


@dataclass(frozen=True)
class Policy:
    """What a server lets in.

    Attributes:
        hosts: `host:port` of the server, in small letters; None for those of whichever port a
            connection came to.
        open_paths: answered to everybody by GET and HEAD, such as a health check.
        only_json: whether a body must say that it is JSON; else it may only be no form and no text.
        form_paths: paths that take a form; it has a token of its own against forgery.
        no_links: prefixes of paths to which not even a link from elsewhere leads. A link from
            elsewhere may open any other path, as a page of its own.
        closed: prefixes of paths that are there for nobody.
        websockets: whether there are any.
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
class Asked:
    """What is judged of a request; a header that is not there is None.

    Attributes:
        method: GET, POST, …; empty for a websocket.
        path: without the query, unquoted.
        host: its Host header.
        origin: its Origin header.
        site: Sec-Fetch-Site.
        opened: Sec-Fetch-Mode and Sec-Fetch-Dest.
        media_type: of Content-Type, without parameters.
        has_body: whether a body follows.
    """

    method: str
    path: str
    host: str | None
    origin: str | None = None
    site: str | None = None
    opened: tuple[str | None, str | None] = (None, None)
    media_type: str | None = None
    has_body: bool = False


def asked_of(scope: Scope) -> Asked:
    """Return what is judged of an ASGI connection."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        headers[name] = _DOUBLED if name in headers else value.decode("latin-1").lower()
    content = headers.get("content-type")
    return Asked(
        method=scope.get("method", ""),
        path=scope["path"],
        host=headers.get("host"),
        origin=headers.get("origin"),
        site=headers.get("sec-fetch-site"),
        opened=(headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")),
        media_type=None if content is None else content.partition(";")[0].strip(),
        has_body=headers.get("content-length", "0") != "0" or "transfer-encoding" in headers,
    )


def refusal(policy: Policy, asked: Asked, port: int = 0) -> Refusal | None:
    """Return the status and the reason with which a request is refused, or None.

    Args:
        policy: of the server.
        asked: the request.
        port: that it came to; matters where the policy names no hosts.
    """
    if asked.method in ("GET", "HEAD") and asked.path in policy.open_paths:
        return None
    hosts = own_hosts(port) if policy.hosts is None else policy.hosts
    if asked.host not in hosts:
        return 421, FOREIGN_HOST
    if not _is_own_page(policy, asked, hosts):
        return 403, FOREIGN_PAGE
    if _one_slash(asked.path).startswith(policy.closed):
        return 404, CLOSED
    if asked.path in policy.form_paths:
        return None
    return _refused_body(policy, asked)


def _is_own_page(policy: Policy, asked: Asked, hosts: frozenset[str]) -> bool:
    """Whether a page of ours asks, or none, or a link from elsewhere opens a page."""
    if asked.origin is not None:
        # Ours by another of its names is cross-site to the browser, so Origin decides where it is.
        return asked.origin in {f"http://{host}" for host in hosts}
    if asked.site in (None, "same-origin", "none"):
        return True
    link = asked.method == "GET" and asked.opened == ("navigate", "document")
    return link and not _one_slash(asked.path).startswith(policy.no_links)


def _one_slash(path: str) -> str:
    return "/" + path.lstrip("/")


def _refused_body(policy: Policy, asked: Asked) -> Refusal | None:
    changes = asked.has_body or asked.method not in _READING
    if changes and asked.media_type in (*FORMS, _DOUBLED):
        return 415, FORM
    if policy.only_json and asked.has_body and asked.media_type != "application/json":
        return 415, NOT_JSON
    return None


class OwnRequests:
    """An ASGI application before another: lets in what the policy does.

    Args:
        app: gets what is let in.
        policy: of the server.
    """

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app, self._policy = app, policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a connection on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        port = (scope.get("server") or ("", 0))[1] or 0
        refused = refusal(self._policy, asked_of(scope), port)
        if scope["type"] == "websocket" and (refused or not self._policy.websockets):
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION})
        elif refused:
            await self._policy.refuse(*refused)(scope, receive, send)
        else:
            await self._app(scope, receive, send)
