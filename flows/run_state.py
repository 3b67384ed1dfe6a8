"""The record of the services that run for one home; the supervisor writes it to `HOME/run/`.

`services.json` lists the services that were started. A lock on `supervisor.lock` shows whether
their supervisor is alive. The kernel releases the lock when the supervisor dies, so neither a
crash, a reboot nor a reused process id can make a stale record look alive.
"""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from millrace.models.common.errors import SilentError, TransientError
from millrace.models.common.file_locks import is_locked, open_private, try_lock
from millrace.models.common.private_files import replace_private

RECORD = "services.json"
LOCK = "supervisor.lock"
STARTING = "starting.lock"
START_SECONDS, RETRY_SECONDS = 60.0, 0.5

log = logging.getLogger("millrace")


@dataclass(frozen=True)
class ServiceRecord:
    """One service as the supervisor last saw it.

    Attributes:
        name: `mlflow`, `prefect`, `triton`, `guard`, `ray`, `deployments`, `webhook` or `openai`;
            `triton-2` and so on for further replicas.
        address: the address for users and clients; empty if it listens nowhere.
        log: the path of its log file.
        pid: its process id; None while it waits for a restart.
        started_at: the time of its last start, in seconds since the epoch.
        restarts: the number of starts after the first.
        last_exit: the exit status of its previous process, negative for a signal.
    """

    name: str
    address: str
    log: str
    pid: int | None = None
    started_at: float | None = None
    restarts: int = 0
    last_exit: int | None = None


@dataclass(frozen=True)
class RunRecord:
    """One supervisor and its services.

    Attributes:
        pid: process id of the supervisor.
        started_at: the time of its start, in seconds since the epoch.
        services: the services, in the order in which they were started.
    """

    pid: int
    started_at: float
    services: tuple[ServiceRecord, ...] = ()

    def service(self, name: str) -> ServiceRecord | None:
        """Return the record of a service, or None if this supervisor does not run it."""
        return next((service for service in self.services if service.name == name), None)


_ADAPTER = TypeAdapter(RunRecord)


def read(run: Path) -> RunRecord | None:
    """Return the record in the folder `run`, live or stale; None if it cannot be read."""
    try:
        return _ADAPTER.validate_json((run / RECORD).read_bytes())
    except (OSError, ValueError):
        return None


def write(run: Path, record: RunRecord) -> None:
    """Replace the record's file atomically; the file has mode 0600."""
    replace_private(run / RECORD, json.dumps(asdict(record), indent=2) + "\n")


def delete(run: Path) -> None:
    """Delete the record."""
    (run / RECORD).unlink(missing_ok=True)


def read_live(run: Path) -> RunRecord | None:
    """Return the record if its supervisor is alive, else None."""
    return read(run) if is_supervisor_alive(run) else None


def is_supervisor_alive(run: Path) -> bool:
    """Return whether a process holds the supervisor's lock."""
    return is_locked(run / LOCK)


def take_lock(run: Path, name: str = LOCK, seconds: float = 1.0) -> IO[bytes] | None:
    """Acquire a lock that lasts until the returned file is closed.

    Args:
        run: the folder of the lock.
        name: `LOCK` (held by a living supervisor) or `STARTING` (held by a starting `millrace up`).
        seconds: how long to retry. The first try may fail, because `is_supervisor_alive` holds the
            lock for a moment.

    Returns:
        The open file, or None if another process holds the lock.
    """
    handle = open_private(run / name)
    deadline = time.monotonic() + seconds
    while not try_lock(handle):
        if time.monotonic() > deadline:
            handle.close()
            return None
        time.sleep(0.05)
    return handle


def wait_for_start(run: Path, address: str, check: Callable[[], None]) -> None:
    """Check a service, and wait for it while `millrace up` is starting it.

    `millrace up` writes its record before its services answer. So a command may read the address of
    MLflow from the record before anything listens at the address.

    Args:
        run: the folder `run` of the home.
        address: the address of the service.
        check: a function that raises a `TransientError` if the service does not answer.

    Raises:
        TransientError: the service does not answer, and no `millrace up` that began in the last
            minute starts the service.
    """
    is_reported = False
    while True:
        try:
            return check()
        except SilentError:  # the check has waited already
            raise
        except TransientError as error:
            if not _is_starting(run, address):
                raise
            if not is_reported:
                log.info("%s; waiting, because `millrace up` is starting the service", error.what)
            is_reported = True
        time.sleep(RETRY_SECONDS)


def _is_starting(run: Path, address: str) -> bool:
    record = read_live(run)
    if record is None or time.time() - record.started_at > START_SECONDS:
        return False
    return any(address in (each.address, f"{each.address}/api") for each in record.services)
