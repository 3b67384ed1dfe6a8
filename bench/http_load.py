"""HTTP clients that each wait for their answer, in one loop over sockets.

A client library would take most of a core, and a ratio would measure the library.
"""

import json
import selectors
import socket
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
END_OF_HEAD, LAST_CHUNK = b"\r\n\r\n", b"0\r\n\r\n"


@dataclass(frozen=True)
class HttpRequest:
    """A POST of JSON, and where it goes."""

    host: str
    port: int
    path: str
    body: bytes

    def encode(self) -> bytes:
        """Return the bytes of the request."""
        head = f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
        head += f"Content-Type: {JSON}\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return head.encode() + self.body

    def send(self) -> Any:
        """Send it once, past all proxies, and return the JSON of the answer."""
        url, headers = f"http://{self.host}:{self.port}{self.path}", {"Content-Type": JSON}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(urllib.request.Request(url, self.body, headers), timeout=10) as answer:
            return json.load(answer)


@dataclass(frozen=True)
class HttpLoad:
    """The result of a load run.

    Attributes:
        latencies: seconds of each answer, all with 200.
        seconds: from the first request to the last answer.
    """

    latencies: Sequence[float]
    seconds: float

    @property
    def requests(self) -> int:
        """Number of answers."""
        return len(self.latencies)

    @property
    def requests_per_second(self) -> float:
        """Requests answered per second."""
        return self.requests / self.seconds


def http_load(request: HttpRequest, *, clients: int, seconds: float) -> HttpLoad:
    """Send the same request from so many clients, for so long.

    Raises:
        ConnectionError: an answer was not 200, or a connection ended.
    """
    data, latencies = request.encode(), list[float]()
    with selectors.DefaultSelector() as selector:
        address = (request.host, request.port)
        sockets = [socket.create_connection(address, timeout=30) for _ in range(clients)]
        begin = time.perf_counter()
        sent = dict.fromkeys(sockets, begin)
        for each in sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(each, selectors.EVENT_READ, each)
            each.sendall(data)
        while time.perf_counter() - begin < seconds:
            for key, _ in selector.select(1.0):
                _read_answer(key.data)
                now = time.perf_counter()
                latencies.append(now - sent[key.data])
                sent[key.data] = now
                key.data.sendall(data)
        elapsed = time.perf_counter() - begin
        for each in sockets:
            each.close()
    return HttpLoad(latencies, elapsed)


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
