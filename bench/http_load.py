"""HTTP clients that each wait for their answer, in one loop over sockets.

A client library would take most of a core, and a ratio would measure the library.
"""

import selectors
import socket
import time
from dataclasses import dataclass

END_OF_HEAD, LAST_CHUNK = b"\r\n\r\n", b"0\r\n\r\n"


@dataclass(frozen=True)
class HttpLoad:
    """The result of a load run.

    Attributes:
        requests: number of answers, all with 200.
        seconds: from the first request to the last answer.
    """

    requests: int
    seconds: float

    @property
    def requests_per_second(self) -> float:
        """Requests answered per second."""
        return self.requests / self.seconds


def format_post(host: str, port: int, path: str, body: bytes) -> bytes:
    """Return the bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def http_load(
    host: str, port: int, path: str, body: bytes, *, clients: int, seconds: float
) -> HttpLoad:
    """Send the same request from so many clients, for so long.

    Raises:
        ConnectionError: an answer was not 200, or a connection ended.
    """
    request, answered = format_post(host, port, path, body), 0
    with selectors.DefaultSelector() as selector:
        sockets = [socket.create_connection((host, port), timeout=30) for _ in range(clients)]
        begin = time.perf_counter()
        for each in sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(each, selectors.EVENT_READ, each)
            each.sendall(request)
        while time.perf_counter() - begin < seconds:
            for key, _ in selector.select(1.0):
                _read_answer(key.data)
                answered += 1
                key.data.sendall(request)
        elapsed = time.perf_counter() - begin
        for each in sockets:
            each.close()
    return HttpLoad(answered, elapsed)


def _read_answer(connection: socket.socket) -> None:
    """Read one answer to its end, which its length or its last chunk shows."""
    head, _, body = _receive(connection).partition(END_OF_HEAD)
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"the answer is {head[:200]!r}")
    head = head.lower()
    if b"transfer-encoding: chunked" in head:
        while not body.endswith(LAST_CHUNK):
            body += _receive(connection)
        return
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += _receive(connection)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the connection ended")
    return data
