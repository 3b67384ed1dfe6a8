"""Ports that nothing listens on."""

import secrets
import socket
from contextlib import ExitStack

from models.places import Endpoint


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def free_endpoint() -> Endpoint:
    return Endpoint("127.0.0.1", *free_ports(3), token=secrets.token_hex(32))
