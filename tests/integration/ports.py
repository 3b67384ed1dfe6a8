"""Ports that nothing listens on, and that no client is given for its end of a connection.

The kernel gives clients the ports of `ip_local_port_range`, on Linux from 32768 on. A server that
is to come back on a port from there may find it taken. Test processes that run side by side have
ranges of their own: a port may be free when it is given, and taken before it is used.
"""

import os
import random
import secrets
import socket

from millrace.models.common.installation import Endpoint

FIRST, EACH, PROCESSES = 20_000, 2_000, 6
SERVICES = (
    *("mlflow", "prefect", "webhook", "openai"),
    *("triton_http", "triton_grpc", "triton_metrics"),
)

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports that this process has not been given before."""
    return [_free_port() for _ in range(count)]


def free_endpoint() -> Endpoint:
    """Return the address of a Triton to be started, with a token."""
    return Endpoint("127.0.0.1", *free_ports(3), token=secrets.token_hex(32))


def service_ports() -> dict[str, int]:
    """Return the settings of the ports of all services."""
    ports = free_ports(len(SERVICES))
    return {f"{name}_port": port for name, port in zip(SERVICES, ports, strict=True)}


def _free_port() -> int:
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = FIRST + EACH * (worker % PROCESSES)
    while True:
        port = random.SystemRandom().randrange(first, first + EACH)
        if port not in _given and _is_free(port):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
