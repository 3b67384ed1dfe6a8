"""Refuses what a page in a browser sends to a server of this machine.

A page whose name its owner lets point to 127.0.0.1 (DNS rebinding) is, for the browser, of the same
origin as the server: only the Host header tells. A page of another origin may send without reading
the answer: its requests have an Origin.
"""

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(rb"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
FOREIGN_HOST = "The request is for another host than this one."
FOREIGN_PAGE = "Requests of a page of another origin are refused."

Refuse = Callable[[int, str], ASGIApp]


def refusal_of(hosts: list[bytes], origins: list[bytes], port: int) -> tuple[int, str] | None:
    """Return the status and the reason with which a request is refused, or None.

    Args:
        hosts: the values of its Host header.
        origins: of its Origin header.
        port: where the server listens.
    """
    if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
        return 421, FOREIGN_HOST
    own = {f"http://{name}:{port}".encode() for name in OWN_NAMES}
    return None if own.issuperset(origins) else (403, FOREIGN_PAGE)


class OwnRequests:
    """Lets through what is for a server on loopback and comes from no foreign page.

    Args:
        app: answers the rest.
        port: where it listens.
        refuse: makes the response of a refusal.
    """

    def __init__(self, app: ASGIApp, port: int, refuse: Refuse) -> None:
        self._app, self._port, self._refuse = app, port, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        app = self._app
        if scope["type"] == "http":
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            origins = [value for name, value in scope["headers"] if name == b"origin"]
            refused = refusal_of(hosts, origins, self._port)
            app = self._refuse(*refused) if refused else app
        await app(scope, receive, send)
