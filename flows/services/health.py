"""Checks the health of services, and detects frozen processes (alive, but no longer answering).

A process may be stopped by a signal, or wait for a lock that nobody releases; the kernel still
reports it as running. Under heavy load a server answers late too, and must not be killed for that:
a check waits ten seconds for an answer, and a process counts as frozen only when all checks have
failed for the time `Service.patience` (two minutes by default).
"""

import urllib.request
from dataclasses import dataclass, replace
from http.client import HTTPException
from pathlib import Path

from millrace.flows.services.service_specs import Service, SocketUrl

CHECK_SECONDS = 5.0
ANSWER_SECONDS = 10.0
MIN_FAILURES = 5
"""A process counts as frozen only after this number of failed checks. A long time with failures is
not enough, because a supervisor that stalled has made few checks in that time."""
STARTUP_SECONDS = 60.0
"""A process never counts as frozen for this long after its start."""


def is_service_healthy(service: Service, pid: int | None, timeout: float = 2.0) -> bool:
    """Return whether the service's process `pid` reports within `timeout` s that it is healthy."""
    if isinstance(service.health, Path):
        try:
            return service.health.read_text().split("\n", 1)[0].strip() == str(pid)
        except OSError:
            return False
    if isinstance(service.health, SocketUrl):
        from millrace.serving.guard.sockets import socket_answers

        return socket_answers(service.health.socket, service.health.path, timeout)
    return is_url_healthy(service.health, timeout)


def is_url_healthy(url: str, timeout: float = 2.0) -> bool:
    """Return whether a GET of `url` answers 200; the request never goes through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, HTTPException):
        return False


@dataclass(frozen=True)
class HealthHistory:
    """Results of the health checks of one process.

    Attributes:
        pid: the process; None before the first check.
        was_healthy: whether a check has succeeded.
        failures: the number of failed checks since the last successful or excused check.
        failing_since: the time in seconds when the first of these failed checks ended.
    """

    pid: int | None = None
    was_healthy: bool = False
    failures: int = 0
    failing_since: float = 0.0

    def is_healthy(self, pid: int | None) -> bool:
        """Return whether the last check was of this process and succeeded."""
        return self.pid == pid and self.was_healthy and not self.failures

    def add_check(
        self, pid: int, *, is_healthy: bool, now: float, is_excused: bool = False
    ) -> "HealthHistory":
        """Return the history with one more check; another process starts a new history.

        Args:
            pid: the process that was checked.
            is_healthy: whether the check succeeded.
            now: the time in seconds.
            is_excused: whether a failure does not count, because a service that the checked one
                depends on is not healthy.
        """
        before = self if self.pid == pid else HealthHistory(pid)
        if is_healthy or is_excused:
            return HealthHistory(pid, was_healthy=is_healthy or before.was_healthy)
        since = before.failing_since if before.failures else now
        return replace(before, failures=before.failures + 1, failing_since=since)

    def is_frozen(self, pid: int, *, uptime: float, now: float, patience: float) -> bool:
        """Return whether a process was healthy once and has failed every check for too long.

        Args:
            pid: the service's present process.
            uptime: seconds since its start.
            now: the time in seconds, of the same clock as the checks.
            patience: the seconds for which checks may fail.
        """
        if self.pid != pid or not self.was_healthy or uptime < STARTUP_SECONDS:
            return False
        return self.failures >= MIN_FAILURES and now - self.failing_since >= patience
