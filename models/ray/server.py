"""Runs one Ray for commands: `python -m millrace.models.ray.server RUN CPUS SECONDS MODULE…`.

RUN is the folder of a `WarmRay`, CPUS are the logical CPUs of this Ray. The MODULEs are imported
once, by a `fork_server` from which the workers are forked; without any there is none.

It ends by itself when no command has used it for SECONDS, when one of Ray's processes dies, and,
once the running commands have ended, when its parent is gone. A command without `millrace up`
starts it for itself alone, with 0 seconds; with `up`, the supervisor starts it when a command asks
for it.
"""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import psutil

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.fork_client import FORK_SERVER
from millrace.models.common.ray_folder import (
    fork_server_socket,
    ray_folder,
    ray_logs,
    remove_leftovers,
)
from millrace.models.common.subprocess_runner import DRIVER
from millrace.models.ray.start_queue import wait_turn
from millrace.models.ray.warm import ReadyRay, WarmRay, default_cpus, fingerprint
from millrace.models.ray.worker import WARM_RAY

if TYPE_CHECKING:
    from millrace.models.ray.head import HeadNode

CHECK_SECONDS = 1.0
STARTS = 3
"""How often Ray is started: its first process has 30 s, too little on a busy machine."""
START_LOCK = "start.lock"


def must_stop(*, idle: float, limit: float, is_orphan: bool) -> bool:
    """Return whether a Ray that no command uses stops now.

    Args:
        idle: seconds since the last use.
        limit: seconds after which it stops.
        is_orphan: whether its parent is gone.
    """
    return is_orphan or idle >= limit


class RayServer:
    """Serves one Ray until it is idle for long, or until SIGTERM.

    Args:
        warm: the files by which commands find this Ray.
        cpus: the logical CPUs of this Ray, of all shares together.
        limit: seconds without use after which it stops.
        imports: modules that the workers need.
    """

    def __init__(self, warm: WarmRay, cpus: int, limit: float, imports: Sequence[str]) -> None:
        self._warm, self._cpus, self._limit, self._imports = warm, cpus, limit, imports
        self._parent = os.getppid()
        self._is_stopping = False
        self._last_use = time.time()
        self._woken, wakes = socket.socketpair()
        for end in (self._woken, wakes):
            end.setblocking(False)
        self._wakes = wakes
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

    def stop(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Ask `serve` to end; may be called as a signal handler."""
        self._is_stopping = True

    def serve(self) -> None:
        """Start Ray, and keep it until it must stop.

        Raises:
            WorkError: Ray did not start, or one of its processes died.
        """
        variables = fingerprint(os.environ)  # before Ray is imported, which sets variables
        self._warm.create_folder()
        os.environ[WARM_RAY] = str(self._warm.folder)
        fork_server = _start_fork_server(self._imports)
        node = None
        try:
            node = start_ray(self._cpus)
            share = min(self._cpus, default_cpus(1))
            address, forks = str(node.gcs_address), os.environ.get(FORK_SERVER, "")
            self._warm.write_ready(
                ReadyRay(os.getpid(), address, share, variables, forks, node.raylet_pid)
            )
            remove_leftovers(ray_folder().parent, time.time())
            while not self._is_stopping and not self._withdraw_if_idle():
                if dead := node.dead_names():
                    raise WorkError("a process of Ray died", seen=", ".join(dead))
                select.select(
                    [self._woken], [], [], CHECK_SECONDS
                )  # a sleep would outlast a signal
        finally:
            self._warm.ready.unlink(missing_ok=True)
            if node is not None:
                node.kill_all_processes(check_alive=False, allow_graceful=True)
            if fork_server is not None:
                fork_server.kill()
                fork_server.wait()
                for path in ray_folder().parent.glob(f"fork-{os.getpid()}.sock*"):
                    path.unlink(missing_ok=True)

    def _withdraw_if_idle(self) -> bool:
        """Refuse further commands if Ray must stop; return whether it must."""
        with self._warm.reserve_all() as is_free:
            now = time.time()
            self._last_use = max(self._last_use, self._warm.last_use()) if is_free else now
            idle, is_orphan = now - self._last_use, os.getppid() != self._parent
            if not is_free or not must_stop(idle=idle, limit=self._limit, is_orphan=is_orphan):
                return False
            # While this process holds every share, no command can connect, and none waits for the
            # request that one made while Ray was starting.
            self._warm.ready.unlink(missing_ok=True)
            self._warm.request.unlink(missing_ok=True)
            return True


def _start_fork_server(imports: Sequence[str]) -> "subprocess.Popen[bytes] | None":
    """Start the process that workers are forked from; None without imports, and with a GPU.

    What CUDA does in a process that was forked after torch was imported has not been tried.
    """
    os.environ.pop(FORK_SERVER, None)
    if not imports or DRIVER.exists():
        return None
    path = fork_server_socket(os.getpid())
    path.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "millrace.models.common.fork_server", str(path)]
    process = subprocess.Popen([*command, *imports], start_new_session=True)
    os.environ[FORK_SERVER] = str(path)
    return process


def start_ray(cpus: int) -> "HeadNode":
    """Start Ray's processes. Commands of one user that start at once do it one after the other."""
    from millrace.models.ray.head import start_head

    with wait_turn(ray_folder().with_name(START_LOCK), "the start of Ray"):
        for left in reversed(range(STARTS)):
            before = set(_ray_processes())
            try:
                return start_head(cpus)
            except MillraceError:
                raise
            except Exception as error:  # Ray raises Exception itself if it starts too slowly
                _kill(set(_ray_processes()) - before)
                if not left:
                    raise WorkError(
                        "Ray did not start",
                        seen=next(iter(str(error).splitlines()), type(error).__name__),
                        hint=f"try again; see {ray_logs()}",
                    ) from error
    raise AssertionError("the last failure was raised")


def _ray_processes() -> list[psutil.Process]:
    """Return Ray's processes among the children of this process."""
    children = []
    for process in psutil.Process().children():
        try:
            if any("/ray/" in word for word in process.cmdline()):
                children.append(process)
        except psutil.Error:
            continue
    return children


def _kill(failed: set[psutil.Process]) -> None:
    """End the processes of a failed start; Ray ends its own only when this process ends."""
    for process in failed:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def main() -> None:
    """Serve until Ray is idle for long, or until SIGTERM."""
    run, cpus, seconds, *imports = sys.argv[1:]
    server = RayServer(WarmRay(Path(run)), int(cpus), float(seconds), imports)
    signal.signal(signal.SIGTERM, server.stop)
    try:
        server.serve()
    except WorkError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
