"""The temporary Prefect server of a command, where `millrace up` does not run.

The server takes 8 s to start in a new home, so it starts before the command imports what it needs.
Prefect would start it when the flow begins.

In the command's session the server would also receive the terminal's Ctrl-C and be gone when the
flow reports its end, and the flow would retry for minutes. So the server has its own session. The
command ends it in its exit handlers, which SIGTERM and SIGKILL skip, so the server also watches its
command. A server that cannot end itself, for example because it is frozen, is ended by the next
command.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from millrace.flows.settings import LOOPBACK
from millrace.models.common.errors import TransientError

COMMAND_VARIABLE = "MILLRACE_COMMAND"
"""Contains the process id of the command that started a temporary server."""
TEMPORARY_VARIABLE = "PREFECT__SERVER_EPHEMERAL"
"""Prefect's server reads this variable: with 1 it runs fewer services."""
HOME_VARIABLE = "MILLRACE_HOME"
API_VARIABLE, DERIVED_VARIABLE = "PREFECT_API_URL", "MILLRACE_DERIVED"
WATCH_SECONDS = 0.5
POLL_SECONDS = 0.05
START_SECONDS = 120.0
END_SECONDS = 5.0

_begun: "list[TemporaryPrefect]" = []
"""The server that `begin_server` has started."""


class TemporaryPrefect:
    """A Prefect server in a process of its own, on a free port of the loopback interface.

    Args:
        log: file for its errors.
    """

    def __init__(self, log: Path) -> None:
        with socket.socket() as port, log.open("ab") as output:
            port.bind((LOOPBACK, 0))
            self.api = f"http://{LOOPBACK}:{port.getsockname()[1]}/api"
            self._log = log
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(port.fileno())],
                pass_fds=[port.fileno()],
                env={
                    **os.environ,
                    COMMAND_VARIABLE: str(os.getpid()),
                    TEMPORARY_VARIABLE: "1",
                    "PREFECT__SERVER_FINAL": "1",
                    "PREFECT_UI_ENABLED": "0",
                    # Only forms of the UI read them; the server of `up` registers them.
                    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until it answers.

        Raises:
            TransientError: it ended, or did not answer in time.
        """
        import httpx

        deadline = time.monotonic() + START_SECONDS
        with httpx.Client(trust_env=False, timeout=END_SECONDS) as client:
            while self._process.poll() is None and time.monotonic() < deadline:
                with suppress(httpx.HTTPError):
                    if client.get(f"{self.api}/health").is_success:
                        return
                time.sleep(POLL_SECONDS)
        code = self._process.poll()
        raise TransientError(
            "the temporary Prefect server did not start",
            seen=f"exit code {code}" if code is not None else f"no answer in {START_SECONDS:.0f} s",
            hint=f"try again; see {self._log}",
        )

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def begin_server(log: Path) -> None:
    """Begin to start the server of this process, which Prefect's clients in it will use.

    Call it before Prefect is imported, which reads the address.

    Args:
        log: file for its errors.
    """
    if _begun:
        return
    server = TemporaryPrefect(log)
    _begun.append(server)
    atexit.register(server.stop)
    os.environ[API_VARIABLE] = server.api
    # No choice of the user's, and so of no effect on what `settings.load` returns.
    derived = json.loads(os.environ.get(DERIVED_VARIABLE, "{}"))
    os.environ[DERIVED_VARIABLE] = json.dumps({**derived, API_VARIABLE: server.api})


def address() -> str | None:
    """Return the address of this process's temporary server, which may not answer yet, or None."""
    return _begun[0].api if _begun else None


def wait_for_server() -> None:
    """Wait until the server that was begun answers, if one was.

    Raises:
        TransientError: it did not start.
    """
    for server in _begun:
        server.wait_until_ready()


def end_orphaned_servers(home: str) -> None:
    """End the temporary servers of this home whose commands no longer run."""
    import psutil

    from millrace.flows.services import processes

    orphans = []
    for process in processes.find_marked(TEMPORARY_VARIABLE, "1"):
        with suppress(psutil.Error, OSError):
            variables = process.environ()
            command = variables.get(COMMAND_VARIABLE, "")
            is_ours = variables.get(HOME_VARIABLE) == home and command != ""
            if is_ours and not psutil.pid_exists(int(command)):
                orphans.append(process)
    processes.end_processes(orphans, END_SECONDS)


def _exit_with_parent(command: int) -> None:
    """End this process when its parent is no longer the process with the id `command`."""
    while os.getppid() == command:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


def main() -> None:
    """Serve on the socket whose file descriptor is the argument, until SIGTERM."""
    command = int(os.environ[COMMAND_VARIABLE])
    threading.Thread(target=_exit_with_parent, args=(command,), daemon=True).start()
    from prefect.server.api.server import create_app

    from millrace.flows.services.prefect_database import prepare_database
    from millrace.flows.services.prefect_server import POLICY, poll_rarely
    from millrace.serving.http_server import run_server
    from millrace.serving.origin_check import OriginCheck

    prepare_database()
    poll_rarely()
    with socket.socket(fileno=int(sys.argv[1])) as port:
        app = OriginCheck(create_app(), POLICY)
        run_server(app, sockets=[port], lifespan="on", log_level="error")


if __name__ == "__main__":
    main()
