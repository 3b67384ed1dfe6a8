"""A page over HTTP at a Unix socket in MILLRACE_HOME, to which a route of the guard leads."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from threading import Thread

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of Prometheus' text format."""
SECONDS = 10.0
"""How long a client may take."""


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, page: Callable[[], bytes]) -> None:
        self.page, self._path = page, path
        super().__init__(str(path), _Handler)

    def server_bind(self) -> None:
        """Bind through `/proc/self/fd` of the folder, so that the socket's address is short."""
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            with suppress(FileNotFoundError):
                self._path.unlink()  # of a process that was killed
            self.socket.bind(f"/proc/self/fd/{folder}/{self._path.name}")
            self._path.chmod(0o600)
        finally:
            os.close(folder)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SECONDS

    def do_GET(self) -> None:  # the name is that of the library
        """Answer with the page, whatever the path is: the guard's route has only one."""
        body = self.server.page()
        self.send_response(200)
        self.send_header("Content-Type", TEXT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """Say nothing."""


@contextmanager
def serving_page(path: Path, page: Callable[[], bytes]) -> Iterator[None]:
    """Serve a page while the block runs; only the owner of the socket may open it.

    Args:
        path: the socket, whose folder is there.
        page: returns the page; it may be called by several threads at once.

    Raises:
        OSError: the socket cannot be made.
    """
    with _Server(path, page) as server:
        thread = Thread(target=server.serve_forever, name=path.name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            path.unlink(missing_ok=True)
