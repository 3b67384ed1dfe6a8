"""Checks that a service is reachable, before a client is used that would retry for minutes."""

import math
import socket
import sqlite3
import time
import urllib.request
from contextlib import closing
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit

from millrace.models.common.errors import SilentError, TransientError, WorkError

TIMEOUT_S = 5.0
PATIENCE_S = 20.0
"""Longest wait for a service that accepts connections and does not answer.

It may be busy or starting.
"""
SILENT_S, HURRIED_S = 60.0, 1.0
"""A service that was silent in the last `SILENT_S` gets only `HURRIED_S`, not `PATIENCE_S`."""
HEALTH_S, DATA_S = 0.5, 5.0
"""A health or data page that answered in the last seconds is not requested again.

Several calls of MLflow follow each other within milliseconds.
"""

_silent_at: dict[str, float] = {}
_answered_at: dict[str, float] = {}


def require_http(health: str, *, service: str, setting: str, data: str | None = None) -> None:
    """Check that a service answers over HTTP.

    Args:
        health: URL of its health page.
        service: its name, for messages.
        setting: environment variable with its address.
        data: URL of a page that reads the service's data. The page is checked too, because a server
            whose database or workers hang still answers its health page. Any answer but a server
            error counts. None: check the health page only.

    Raises:
        SilentError: the service accepts connections and does not answer in `PATIENCE_S`.
        TransientError: nothing answers, or the service fails.
    """
    now = time.monotonic()
    was_silent = now - _silent_at.get(health, -math.inf) < SILENT_S
    deadline = now + (HURRIED_S if was_silent else PATIENCE_S)
    try:
        if now - _answered_at.get(health, -math.inf) >= HEALTH_S:
            _require_answer(health, deadline, service, setting)
            _answered_at[health] = now
        if data is not None and now - _answered_at.get(data, -math.inf) >= DATA_S:
            _require_answer(data, deadline, service, setting, is_data=True)
            _answered_at[data] = now
    except SilentError:
        _answered_at.pop(health, None)
        _silent_at[health] = _silent_at[health] if was_silent else time.monotonic()
        raise
    _silent_at.pop(health, None)


def _require_answer(
    url: str, deadline: float, service: str, setting: str, *, is_data: bool = False
) -> None:
    while True:
        left = max(deadline - time.monotonic(), 0.1)
        try:
            with urllib.request.urlopen(url, timeout=min(TIMEOUT_S, left)):
                return
        except (OSError, ValueError, HTTPException) as error:
            code = error.code if isinstance(error, HTTPError) else 0
            if code in (401, 403) or (is_data and 0 < code < 500):
                return  # the service runs, and wants a login
            # urllib wraps an error of the connection, but not the timeout of a late answer.
            if not isinstance(error, TimeoutError):
                reason = error if code else getattr(error, "reason", error)
                raise _unreachable(TransientError, service, url, setting, reason) from error
            if time.monotonic() >= deadline:
                raise _unreachable(SilentError, service, url, setting, error) from error


def require_tcp(address: str, *, service: str, setting: str) -> None:
    """Check that something listens at `host:port` or `scheme://host:port`.

    Raises:
        TransientError: nothing listens, or the address has no port.
    """
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), TIMEOUT_S):
            return
    except (OSError, ValueError) as error:
        raise _unreachable(TransientError, service, address, setting, error) from error


def require_database(uri: str, *, service: str, setting: str) -> None:
    """Check that a SQLite file can be opened or created; do not check any other address.

    Args:
        uri: `sqlite:///path`.
        service: name of the service that owns the database, for messages.
        setting: environment variable with the database's address.

    Raises:
        WorkError: the file's folder does not exist, or the file cannot be written or is not a
            database.
    """
    scheme, _, path = uri.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return
    try:
        with closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return  # another process is writing, so the database exists
        raise WorkError(
            f"the database of {service} cannot be opened",
            seen=f"{path}: {error}",
            valid="a SQLite file in a folder that can be written",
            hint=f"check {setting} (now {uri})",
        ) from error


def _unreachable(
    kind: type[TransientError], service: str, address: str, setting: str, error: object
) -> TransientError:
    return kind(
        f"{service} cannot be reached at {address}",
        seen=error,
        valid=f"an address at which {service} answers",
        hint=f"if `millrace up` started {service}, run `millrace status`; otherwise check "
        f"{setting}, or unset {setting} to use the embedded service",
    )
