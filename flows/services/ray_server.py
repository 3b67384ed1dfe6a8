"""The Ray of `millrace up` for its commands: `python -m millrace.flows.services.ray_server`.

The supervisor starts it when a command asks for it. It ends by itself when no command has used it
for `MILLRACE_RAY_IDLE` seconds, when one of Ray's processes dies, and, once the running commands
have ended, when its supervisor is gone.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from millrace.flows import tool_variables
from millrace.flows.console import exit_on_error
from millrace.flows.settings import Settings, load
from millrace.models.common.errors import WorkError
from millrace.models.common.ray_folder import ray_folder
from millrace.models.common.warm_ray import SHARES, ReadyRay, WarmRay, default_cpus, fingerprint

CHECK_SECONDS = 1.0
PRELOADED = (
    *("numpy", "torch", "torch.utils.data", "torch.nn.parallel", "pandas", "pydantic"),
    *("pyarrow.dataset", "pyarrow.parquet", "fsspec.implementations.local", "jsonschema"),
    *("google.protobuf.json_format", "requests", "psutil", "yaml", "deltalake", "onnx"),
)


def must_stop(*, idle: float, limit: float, is_orphan: bool) -> bool:
    """Return whether a Ray that no command uses stops now.

    Args:
        idle: seconds since the last use.
        limit: seconds after which it stops.
        is_orphan: whether its supervisor is gone.
    """
    return is_orphan or idle >= limit


class RayServer:
    """Serves one Ray until it is idle for long, or until SIGTERM.

    Args:
        settings: the settings of the home.
    """

    def __init__(self, settings: Settings) -> None:
        self._warm, self._limit = WarmRay(settings.run), settings.ray_idle
        self._supervisor = os.getppid()
        self._is_stopping = False
        self._last_use = time.time()

    def stop(self, signum: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Ask `serve` to end; may be called as a signal handler."""
        self._is_stopping = True

    def serve(self) -> None:
        """Start Ray, and keep it until it must stop.

        Raises:
            WorkError: a process of Ray died.
        """
        variables = fingerprint(os.environ)  # before Ray is imported, which sets variables
        fork_server = self._start_fork_server()
        from millrace.models.common.ray_head import start_head

        cpus = default_cpus(1)
        self._warm.create_folder()
        node = start_head(SHARES * cpus)
        try:
            ready = ReadyRay(os.getpid(), str(node.gcs_address), cpus, variables)
            self._warm.write_ready(ready)
            while not self._is_stopping and not self._withdraw_if_idle():
                if dead := node.dead_names():
                    raise WorkError("a process of Ray died", seen=", ".join(dead))
                time.sleep(CHECK_SECONDS)
        finally:
            self._warm.ready.unlink(missing_ok=True)
            node.kill_all_processes(check_alive=False, allow_graceful=True)
            fork_server.kill()
            fork_server.wait()

    def _start_fork_server(self) -> "subprocess.Popen[bytes]":
        path = ray_folder().with_name(f"fork-{os.getpid()}.sock")
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True, parents=True)
        command = [sys.executable, "-P", "-m", "millrace.models.common.fork_server"]
        process = subprocess.Popen([*command, str(path), *PRELOADED], start_new_session=True)
        os.environ["MILLRACE_FORK_SERVER"] = str(path)
        return process

    def _withdraw_if_idle(self) -> bool:
        """Refuse further commands if Ray must stop; return whether it must."""
        with self._warm.reserve_all() as is_free:
            now = time.time()
            self._last_use = max(self._last_use, self._warm.last_use()) if is_free else now
            idle, is_orphan = now - self._last_use, os.getppid() != self._supervisor
            if not is_free or not must_stop(idle=idle, limit=self._limit, is_orphan=is_orphan):
                return False
            # While this process holds every share, no command can connect, and none waits for the
            # request that one made while Ray was starting.
            self._warm.ready.unlink(missing_ok=True)
            self._warm.request.unlink(missing_ok=True)
            return True


def main() -> None:
    """Serve until Ray is idle for long, or until SIGTERM."""
    with exit_on_error():
        server = RayServer(tool_variables.apply(load()))
        signal.signal(signal.SIGTERM, server.stop)
        server.serve()


if __name__ == "__main__":
    main()
