"""A command's side of the Ray that `millrace up` keeps warm.

The folder `run/ray` of the home connects the commands with the service `ray` of `up`:

- `request`: a command creates it, and the supervisor starts the service and removes it.
- `ready`: the service writes its process id, its address and its versions here, and removes it
  before it stops.
- `share-N`: a command holds an exclusive lock on one of these files while it uses Ray. The kernel
  releases the lock when the command ends, however it ends. The service holds all of them when it
  stops, so no command can be using Ray then.
- `jobs/JOB.json`: the environment of the command that owns a job, for its workers.
"""

import hashlib
import json
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from millrace.models.common.file_locks import open_private, try_lock
from millrace.models.common.private_files import replace_private
from millrace.models.common.slow_step import report_while

SHARES = 4
"""Number of commands that may use the warm Ray at the same time."""
START_SECONDS = 120.0
REQUEST_SECONDS = 10.0
"""Time in which a live supervisor notices a request."""
POLL_SECONDS = 0.1
SHARE_SECONDS = 1.0
"""Time for which a share is tried: the service and `status` hold each lock for a moment."""
NOT_COMPARED = ("RAY_TRAIN_", "RAY_DATA_", "RAY_JOB_ID", "RAY_CLIENT_MODE", "RAY_LD_PRELOAD")
"""Prefixes of Ray's variables that concern drivers and workers only, or that Ray sets itself."""
DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")

log = logging.getLogger("millrace")


def default_cpus(processes: int) -> int:
    """Return the logical CPUs that a command with this number of workers or actors needs.

    Two more than the workers reserve. Ray Data's tasks need a CPU as well: without a free one,
    workers and data tasks would wait for each other for ever.
    """
    return max(os.cpu_count() or 1, processes) + 2


@dataclass(frozen=True)
class Fingerprint:
    """What the processes of a Ray and its drivers must have in common.

    Attributes:
        ray: the version of Ray.
        python: the version of Python.
        millrace: the version of Millrace.
        environment: the path of the Python environment.
        variables: a digest of the variables that configure Ray's processes.
    """

    ray: str
    python: str
    millrace: str
    environment: str
    variables: str

    def difference(self, other: "Fingerprint") -> str:
        """Return `what ours, not theirs` for each difference; empty if there is none."""
        ours, theirs = asdict(self), asdict(other)
        return ", ".join(
            f"other {name}" if name == "variables" else f"{name} {ours[name]}, not {theirs[name]}"
            for name in ours
            if ours[name] != theirs[name]
        )


def fingerprint(variables: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of this process with these environment variables."""
    from importlib.metadata import version  # 0.05 s, which `status` avoids

    chosen = {
        name: value
        for name, value in variables.items()
        if name in DEVICES or (name.startswith("RAY_") and not name.startswith(NOT_COMPARED))
    }
    digest = hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()
    return Fingerprint(
        version("ray"), platform.python_version(), version("millrace"), sys.prefix, digest
    )


@dataclass(frozen=True)
class ReadyRay:
    """A warm Ray that accepts drivers.

    Attributes:
        pid: the process id of the service `ray`.
        address: the address of its GCS.
        cpus: the logical CPUs of one share.
        fingerprint: what its drivers must have in common with it.
        fork_server: the socket of the server that its workers are forked from; empty if none.
        raylet: the process id of its raylet, which is the parent of its workers.
    """

    pid: int
    address: str
    cpus: int
    fingerprint: Fingerprint
    fork_server: str = ""
    raylet: int = 0


@dataclass(frozen=True)
class WarmRay:
    """The warm Ray of one home, which may not have started yet.

    Attributes:
        run: the folder `run` of the home.
        is_coming: returns whether the supervisor runs the service `ray`, or will do so because of
            the request.
    """

    run: Path
    is_coming: Callable[[], bool] = lambda: True

    @property
    def folder(self) -> Path:
        """The folder by which commands and service communicate."""
        return self.run / "ray"

    @property
    def request(self) -> Path:
        """The file whose existence asks the supervisor to start the service."""
        return self.folder / "request"

    @property
    def ready(self) -> Path:
        """The file that describes the Ray that accepts drivers."""
        return self.folder / "ready"

    def shares(self) -> tuple[Path, ...]:
        """Return the files whose locks the commands hold."""
        return tuple(self.folder / f"share-{number}" for number in range(SHARES))

    def create_folder(self) -> None:
        """Create the folders; they are in the home, which only this user may enter."""
        (self.folder / "jobs").mkdir(parents=True, exist_ok=True)

    def read_ready(self) -> ReadyRay | None:
        """Return the Ray that accepts drivers, or None."""
        try:
            _, text = self.ready.read_text().split("\n", 1)
            fields = json.loads(text)
            return ReadyRay(**{**fields, "fingerprint": Fingerprint(**fields["fingerprint"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write_ready(self, ready: ReadyRay) -> None:
        """Say that drivers may connect. The first line is the process id, for health checks."""
        replace_private(self.ready, f"{ready.pid}\n{json.dumps(asdict(ready))}\n")

    def write_job(self, job: str) -> None:
        """Store the environment and the current folder of this process for the job's workers."""
        described = {"folder": str(Path.cwd()), "environment": dict(os.environ)}
        replace_private(self.folder / "jobs" / f"{job}.json", json.dumps(described))

    def forget(self) -> None:
        """Remove what a Ray that has ended left."""
        self.ready.unlink(missing_ok=True)
        for file in (self.folder / "jobs").glob("*.json"):
            file.unlink(missing_ok=True)

    def last_use(self) -> float:
        """Return when a command began or ended to use Ray, in seconds since the epoch."""
        times = [share.stat().st_mtime for share in self.shares() if share.exists()]
        return max(times, default=0.0)

    def is_in_use(self) -> bool:
        """Return whether a command uses Ray."""
        with self.reserve_all() as is_free:
            return not is_free

    def describe_use(self) -> str:
        """Return whether a command uses Ray, and if not, since when."""
        if self.is_in_use():
            return "in use"
        if self.read_ready() is None:
            return "starting or stopping"
        since = max(self.last_use(), self.ready.stat().st_mtime)
        return f"idle for {time.time() - since:.0f} s"

    @contextmanager
    def reserve_all(self) -> Iterator[bool]:
        """Hold every share while the block runs, if no command holds one; yield whether it does."""
        held: list[IO[bytes]] = []
        try:
            for path in self.shares():
                handle = _open_locked(path)
                if handle is None:
                    break
                held.append(handle)
            yield len(held) == SHARES
        finally:
            for handle in held:
                handle.close()

    @contextmanager
    def share(self) -> Iterator[bool]:
        """Hold one share while the block runs; yield False if all are taken."""
        self.create_folder()
        handle = self._take_share()
        if handle is None:
            yield False
            return
        with handle:
            os.utime(handle.fileno())
            try:
                yield True
            finally:
                os.utime(handle.fileno())

    def _take_share(self) -> IO[bytes] | None:
        deadline = time.monotonic() + SHARE_SECONDS
        while True:
            for path in self.shares():
                handle = _open_locked(path)
                if handle is not None:
                    return handle
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)

    @staticmethod
    def has_room(processes: int) -> bool:
        """Return whether a share has CPUs for so many workers or actors."""
        return default_cpus(processes) <= default_cpus(1)

    def prepare(self, processes: int) -> None:
        """Have the service started if it does not run, for a command that needs it in a moment.

        Args:
            processes: the workers or actors of the command.
        """
        self.create_folder()
        if self.has_room(processes) and self.read_ready() is None:
            self.request.touch(mode=0o600)

    def wait_until_ready(self) -> ReadyRay | None:
        """Have the service started if it does not run, and return its Ray; None if it fails.

        The caller must hold a share, so that the service does not stop.
        """
        with report_while("starting Ray"):
            return self._wait_until_ready()

    def _wait_until_ready(self) -> ReadyRay | None:
        began, is_requested = time.monotonic(), False
        while (found := self.read_ready()) is None:
            waited = time.monotonic() - began
            if not is_requested:
                log.info("starting the Ray of `millrace up`, which stays for the next command")
                self.request.touch(mode=0o600)
                is_requested = True
            is_unnoticed = waited > REQUEST_SECONDS and self.request.exists()
            if is_unnoticed or waited > START_SECONDS or not self.is_coming():
                self.request.unlink(missing_ok=True)
                return None
            time.sleep(POLL_SECONDS)
        return found


def _open_locked(path: Path) -> IO[bytes] | None:
    """Return the locked file, or None if another process holds its lock."""
    handle = open_private(path)
    if try_lock(handle):
        return handle
    handle.close()
    return None
