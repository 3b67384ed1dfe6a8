"""What runs for one home: the record that the supervisor leaves in `HOME/run/`.

`services.json` says what was started; a lock on `supervisor.lock` says whether that is still true.
The kernel drops the lock when the supervisor dies, so neither a crash, a reboot nor a reused
process id can make a stale record look alive.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from millrace.models.common.private_files import replace_private

RECORD = "services.json"
LOCK = "supervisor.lock"
STARTING = "starting.lock"


@dataclass(frozen=True)
class ServiceRecord:
    """One service as the supervisor last saw it.

    Attributes:
        name: `mlflow`, `prefect`, `triton`, `deployments` or `webhook`.
        address: where a person or a client reaches it; empty when it listens nowhere.
        log: its log file.
        pid: its process, or None while it waits for a restart.
        started_at: seconds since the epoch of its last start.
        restarts: starts after the first.
        last_exit: exit status of the process before, negative for a signal.
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
        started_at: seconds since the epoch.
        services: in the order in which they were started.
    """

    pid: int
    started_at: float
    services: tuple[ServiceRecord, ...] = ()

    def service(self, name: str) -> ServiceRecord | None:
        """Return the record of a service, or None if this supervisor does not run it."""
        return next((service for service in self.services if service.name == name), None)


def read(run: Path) -> RunRecord | None:
    """Return the record in the folder `run`, alive or stale; None if there is none to read."""
    try:
        raw = json.loads((run / RECORD).read_text())
        services = tuple(ServiceRecord(**service) for service in raw.pop("services"))
        return RunRecord(services=services, **raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write(run: Path, record: RunRecord) -> None:
    """Replace the record atomically, mode 0600."""
    replace_private(run / RECORD, json.dumps(asdict(record), indent=2) + "\n")


def forget(run: Path) -> None:
    """Delete the record."""
    (run / RECORD).unlink(missing_ok=True)


def live(run: Path) -> RunRecord | None:
    """Return the record if its supervisor is alive, else None."""
    return read(run) if supervisor_alive(run) else None


def supervisor_alive(run: Path) -> bool:
    """Return whether a process holds the supervisor's lock."""
    try:
        with (run / LOCK).open("rb") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def hold_lock(run: Path, name: str = LOCK, seconds: float = 1.0) -> IO[bytes] | None:
    """Take a lock; it is held until the file returned is closed.

    Args:
        run: the folder of the lock.
        name: `LOCK`, the supervisor's for its life, or `STARTING`, of an `up` at work.
        seconds: how long to try; `supervisor_alive` holds the lock for a moment when it looks.

    Returns:
        The open file, or None if another process holds the lock.
    """
    handle = os.fdopen(os.open(run / name, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > deadline:
                handle.close()
                return None
            time.sleep(0.05)
