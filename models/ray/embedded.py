"""The Ray of one command, which starts beside the command and ends with it."""

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from millrace.models.common.errors import TransientError
from millrace.models.common.ray_folder import ray_folder, ray_logs, remove_leftovers
from millrace.models.common.slow_step import report_while
from millrace.models.ray.warm import ReadyRay, WarmRay, default_cpus

POLL_SECONDS = 0.05
STOP_SECONDS = 20.0
SERVER = "millrace.models.ray.server"


_begun: "list[EmbeddedRay]" = []
"""The Ray that `begin_embedded` has started, until a connection takes it."""


def begin_embedded(processes: int, imports: Sequence[str] = ()) -> None:
    """Begin to start the Ray that the next connection of this process will take.

    A command calls this first, so that Ray starts while the command imports what it needs. This
    module does not import Ray.
    """
    if not _begun:
        _begun.append(EmbeddedRay(processes, imports))
        atexit.register(_end_unused)


def take_embedded(processes: int, imports: Sequence[str] = ()) -> "EmbeddedRay":
    """Return the Ray that was begun, or begin one."""
    return _begun.pop() if _begun else EmbeddedRay(processes, imports)


def _end_unused() -> None:
    for embedded in _begun:
        embedded.close()


class EmbeddedRay:
    """A Ray in processes of its own, which the `server` of this command starts and ends.

    The server notices the end of this process, also after SIGKILL, by the share that it holds.

    Args:
        processes: number of workers or actors, each of which reserves one CPU.
        imports: modules that they need; they are imported once and the workers are forked.
    """

    def __init__(self, processes: int, imports: Sequence[str] = ()) -> None:
        # A folder with a short path, which only this user may enter.
        folder = ray_folder().parent
        self._run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        self._opened = ExitStack()
        self.warm = WarmRay(self._run)
        self._opened.callback(shutil.rmtree, self._run, ignore_errors=True)
        self._opened.enter_context(self.warm.share())
        self._log = (self._run / "log").open("w+b")
        self._opened.enter_context(self._log)
        command = [sys.executable, "-P", "-m", SERVER, str(self._run)]
        self._server = subprocess.Popen(
            [*command, str(default_cpus(processes)), "0", *imports],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # a Ctrl-C is for the command, which ends it in order
        )

    def wait_until_ready(self) -> ReadyRay:
        """Return how to connect, when it accepts drivers.

        Raises:
            TransientError: it did not start.
        """
        with report_while("starting Ray"):
            while (found := self.warm.read_ready()) is None:
                if self._server.poll() is not None:
                    self._log.seek(0)
                    lines = self._log.read().decode(errors="replace").strip().splitlines()
                    raise TransientError(
                        "the embedded Ray did not start",
                        seen=lines[-1] if lines else f"exit code {self._server.returncode}",
                        hint=f"try again; see {ray_logs()}",
                    )
                time.sleep(POLL_SECONDS)
        return found

    def close(self) -> None:
        """End it, and wait for the end of its processes; a Ctrl-C makes that quick."""
        with self._opened:
            try:
                with report_while("ending Ray"):
                    self._end()
            except KeyboardInterrupt:
                self._kill()

    def _end(self) -> None:
        if self.warm.read_ready() is None:  # it has no job, and would end only when it has started
            self._kill()
            return
        self._server.terminate()
        try:
            self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        """End it at once; the kernel ends Ray's processes with it."""
        self._server.kill()
        self._server.wait()
        remove_leftovers(ray_folder().parent, time.time())  # its sockets
