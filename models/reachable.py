"""Is a service there? Asked before a client that would try for minutes."""

import socket
import sqlite3
import time
import urllib.request
from contextlib import closing
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit

from models.errors import TransientError, WorkError

TIMEOUT_S = 5.0
PATIENCE_S = 30.0
"""For one that takes the connection and does not answer: it may have much to do, or just begin."""


def require_http(url: str, *, service: str, setting: str) -> None:
    """Return if a GET of `url` answers.

    Args:
        url: its health page.
        service: how people call it.
        setting: the variable that names its address.

    Raises:
        TransientError: nothing answers.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S):
                return
        except (OSError, ValueError, HTTPException) as error:
            if isinstance(error, HTTPError) and error.code in (401, 403):
                return  # it is there, and asks whom it lets in
            # urllib wraps what goes wrong before the request was taken, and not a late answer
            if not isinstance(error, TimeoutError) or time.monotonic() > deadline:
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


def require_database(uri: str, *, service: str, setting: str) -> None:
    """Return if a SQLite file can be opened, or made; any other address is not looked at.

    Args:
        uri: `sqlite:///path`.
        service: whose database it is.
        setting: the variable that names its address.

    Raises:
        WorkError: its folder is not there, or it cannot be written, or is no database.
    """
    scheme, _, path = uri.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return
    try:
        with closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return  # somebody else is writing, so it is there
        raise WorkError(
            f"the database of {service} cannot be opened",
            seen=f"{path}: {error}",
            valid="a SQLite file in a folder that can be written",
            hint=f"check {setting} (now {uri})",
        ) from error


def _missing(service: str, address: str, setting: str, error: object) -> TransientError:
    return TransientError(
        f"{service} cannot be reached at {address}",
        seen=error,
        valid=f"the address of a running {service}",
        hint=f"if `millrace up` runs it, see: millrace status; otherwise check {setting}, or unset "
        f"it to use the embedded {service}",
    )
