"""Is a service there? Asked before a client that would try for minutes."""

import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from models.errors import TransientError

TIMEOUT_S = 5.0


def require_http(url: str, *, service: str, setting: str) -> None:
    """Return if a GET of `url` answers.

    Args:
        url: its health page.
        service: how people call it.
        setting: the variable that names its address.

    Raises:
        TransientError: nothing answers.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S):
            return
    except (urllib.error.URLError, TimeoutError, OSError, ValueError) as error:
        raise _missing(service, url, setting, getattr(error, "reason", error)) from error


def require_tcp(address: str, *, service: str, setting: str) -> None:
    """Return if something listens at `host:port` or `scheme://host:port`.

    Raises:
        TransientError: nothing does, or the address has no port.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        raise _missing(service, address, setting, error) from error


def _missing(service: str, address: str, setting: str, error: object) -> TransientError:
    return TransientError(
        f"{service} cannot be reached at {address}",
        seen=error,
        valid=f"the address of a running {service}",
        hint=f"check {setting}, or unset it to use the embedded {service}",
    )
