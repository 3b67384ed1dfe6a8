"""Checks that a service is reachable, before a client that would retry for minutes."""

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
"""For a service that accepts the connection and does not answer: it may be busy or starting."""
SILENT_S, HURRIED_S = 60.0, 1.0
"""A service that was silent in the last minute gets one second instead."""
DATA_S = 5.0
"""A data page that answered so recently is not requested again."""

_silent_at: dict[str, float] = {}
_answered_at: dict[str, float] = {}


def require_http(health: str, *, service: str, setting: str, data: str | None = None) -> None:
    """Return if a service answers.

    Args:
        health: its health page.
        service: its name, for messages.
        setting: the variable that holds its address.
        data: a page that needs its data: a server whose database or workers hang still answers
            its health page. Any answer counts but a server error.

    Raises:
        SilentError: it accepts connections and does not answer in `PATIENCE_S`.
        TransientError: nothing answers, or it fails.
    """
    now = time.monotonic()
    was_silent = now - _silent_at.get(health, -math.inf) < SILENT_S
    deadline = now + (HURRIED_S if was_silent else PATIENCE_S)
    try:
        _require_answer(health, deadline, service, setting)
        if data is not None and now - _answered_at.get(data, -math.inf) >= DATA_S:
            _require_answer(data, deadline, service, setting, is_data=True)
            _answered_at[data] = now
    except SilentError:
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
                return  # it is there, and wants a login
            # urllib wraps an error before the request was accepted, but not a late answer.
            if not isinstance(error, TimeoutError):
                reason = error if code else getattr(error, "reason", error)
                raise _unreachable(TransientError, service, url, setting, reason) from error
            if time.monotonic() >= deadline:
                raise _unreachable(SilentError, service, url, setting, error) from error


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
        raise _unreachable(TransientError, service, address, setting, error) from error


def require_database(uri: str, *, service: str, setting: str) -> None:
    """Return if a SQLite file can be opened or created; any other address is not checked.

    Args:
        uri: `sqlite:///path`.
        service: whose database it is.
        setting: the variable that holds its address.

    Raises:
        WorkError: its folder does not exist, or it cannot be written, or is no database.
    """
    scheme, _, path = uri.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return
    try:
        with closing(sqlite3.connect(path, timeout=TIMEOUT_S)) as database:
            database.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            return  # another process is writing, so it is there
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
        valid=f"the address of a running {service}",
        hint=f"if `millrace up` runs it, see: millrace status; otherwise check {setting}, or unset "
        f"it to use the embedded {service}",
    )
