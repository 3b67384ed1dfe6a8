"""The Unix sockets of Triton and the guard, in MILLRACE_HOME; only its owner may open them.

Their paths are relative to MILLRACE_HOME because an absolute path may be longer than the 107 bytes
that a Unix socket's address can hold.
"""

import os
import socket
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from millrace.models.common.installation import Endpoint


def server_name(endpoint: Endpoint) -> str:
    """Return the name of a server's files; that of the first replica is that of a single server."""
    number = f"r{endpoint.replica}" if (endpoint.replica or 1) > 1 else ""
    return f"{endpoint.grpc_port}{number}"


def http_socket(endpoint: Endpoint) -> str:
    """Return the path of Triton's HTTP socket, relative to MILLRACE_HOME."""
    return f"run/triton-{server_name(endpoint)}.http"


def grpc_address(endpoint: Endpoint) -> str:
    """Return the path that Triton is given for its gRPC socket, relative to MILLRACE_HOME."""
    return f"run/triton-{server_name(endpoint)}.grpc"


def grpc_socket(endpoint: Endpoint) -> str:
    """Return the path of Triton's gRPC socket: Triton appends a colon and the port."""
    return f"{grpc_address(endpoint)}:{endpoint.grpc_port}"


def metrics_socket(endpoint: Endpoint) -> str:
    """Return the path of Triton's metrics socket, relative to MILLRACE_HOME."""
    return f"run/triton-{server_name(endpoint)}.metrics"


def guard_socket(endpoint: Endpoint) -> str:
    """Return the path of the guard's administration socket, relative to MILLRACE_HOME."""
    return f"run/guard-{endpoint.http_port}.admin"


def clients_socket(endpoint: Endpoint) -> str:
    """Return the path of the socket with what clients see, relative to MILLRACE_HOME."""
    return f"run/clients-{endpoint.http_port}.metrics"


class SocketConnection(HTTPConnection):
    """An HTTP connection over a Unix socket.

    Args:
        path: the path of the socket, of any length.
        timeout: the limit of each operation, in seconds.
    """

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        """Connect through `/proc/self/fd` of the folder, so that the socket's address is short."""
        folder = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{folder}/{self.path.name}")
        except BaseException:
            self.close()
            raise
        finally:
            os.close(folder)


def socket_answers(path: Path, url: str, timeout: float = 2.0) -> bool:
    """Whether a GET of `url` over the socket answers 200."""
    connection = SocketConnection(path, timeout)
    try:
        connection.request("GET", url)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
