"""A web page of somebody else's in a real Chromium, which asks servers of this machine."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.chromium import CHROMIUM, FLAGS, LOADED_MS
from tests.integration.stranger import Ask

if TYPE_CHECKING:
    from playwright.sync_api import Page

PAGE = Path(__file__).with_name("foreign_page.html").read_text()
EVIL = "evil.example"
"""A name whose owner lets it point to this machine."""
OPTIONS = (
    f"--host-resolver-rules=MAP {EVIL} 127.0.0.1",
    # What newer browsers ask the user about is let through: the servers must hold by themselves.
    "--disable-features=LocalNetworkAccessChecks,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",
)
LAST_MS = 500
"""For what a page sends without hearing of its end."""
UNREAD = frozenset({"failed", "opaque", "opaque 0", "nothing"})
"""What a page is told that reads nothing."""

Told = frozenset[tuple[str, str]]


@dataclass
class Elsewhere:
    """A web server of somebody else's: gives the page, takes everything and notes what came.

    Attributes:
        port: on this machine.
        taken: method and media type of every request below the page.
    """

    port: int = 0
    taken: set[tuple[str, str]] = field(default_factory=set)


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    """Run such a server."""
    found = Elsewhere()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path != "/":
                media_type = (self.headers.get("Content-Type") or "").partition(";")[0]
                found.taken.add((self.command, media_type))
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(PAGE.encode())))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(PAGE.encode())

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


@contextmanager
def victim() -> Iterator["Page"]:
    """Run the browser of the person who runs `up`."""
    from playwright.sync_api import sync_playwright

    assert CHROMIUM is not None, "install Chromium, or run the tests without -m browser"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *OPTIONS])
        page = chromium.new_page()
        page.set_default_timeout(LOADED_MS)
        yield page
        chromium.close()


def attack(page: "Page", base: str, asked: Sequence[Ask]) -> Told:
    """Have the page that is open send requests in every way; return each way and what it is told.

    Args:
        page: shows the page.
        base: where to, such as `http://127.0.0.1:5000`.
        asked: what to send.
    """
    rows = [[each.method, each.path, each.body, dict(each.headers or {})] for each in asked]
    seen = page.evaluate("([base, rows]) => attack(base, rows)", [base, rows])
    page.wait_for_timeout(LAST_MS)
    return frozenset((way, told) for way, told in seen)


def rebound(page: "Page", port: int, asked: Sequence[Ask]) -> Told:
    """Attack a port by a page that came from its very address, whose name then led elsewhere.

    For the browser both are of one origin: it sends what the page wants, and gives it the answers.
    """
    base = f"http://{EVIL}:{port}"
    page.route(f"{base}/", lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    page.goto(f"{base}/")
    page.unroute(f"{base}/")
    return attack(page, base, asked)


def is_refused_by_name(told: str) -> bool:
    """Tell whether a page of one origin with the server was told that it is for another host."""
    return told in UNREAD or "another host" in told
