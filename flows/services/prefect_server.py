"""Millrace's origin check for the Prefect server of `millrace up`, and for temporary servers.

`python -m millrace.flows.services.prefect_server` runs what `prefect server start` runs in the
foreground, with the origin check around Prefect's application.

If `millrace up` does not run, a command starts a temporary Prefect server as its child process. In
the command's session the server would also receive the terminal's Ctrl-C and be gone when the flow
reports its end, and the flow would retry for minutes. So the server has its own session. Prefect
ends the server in the command's exit handlers, which SIGTERM and SIGKILL skip, so the server also
watches its command. A server that cannot end itself, for example because it is frozen, is ended by
the next command.
"""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
from starlette.types import ASGIApp

from millrace.flows.services import processes
from millrace.flows.settings import LOOPBACK, load
from millrace.serving.origin_check import OriginCheck, OriginPolicy

COMMAND_VARIABLE = "MILLRACE_COMMAND"
"""Contains the process id of the command that started a temporary server."""
TEMPORARY_VARIABLE = "PREFECT__SERVER_EPHEMERAL"
"""Prefect sets this variable to 1 in the environment of a temporary server."""
HOME_VARIABLE = "MILLRACE_HOME"
PREFECT_FACTORY = "prefect.server.api.server:create_app"
GUARDED_FACTORY = "millrace.flows.services.prefect_server:create_temporary_app"
WATCH_SECONDS = 0.5
POLL = timedelta(seconds=1)
END_SECONDS = 5.0
POLICY = OriginPolicy(
    open_paths=frozenset({"/api/health", "/api/ready"}),
    only_json=True,
    no_links=("/api",),
    websockets=True,
)
"""Prefect's API requires its login except on the two open paths. The origin check refuses web pages
of other origins, because a web page could guess the login."""


class _GuardedSubprocess:
    """Replaces the module `subprocess` where Prefect starts its temporary server."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def Popen(**options: Any) -> "subprocess.Popen[Any]":  # noqa: N802 - the name in `subprocess`
        environment = {**options.pop("env"), COMMAND_VARIABLE: str(os.getpid())}
        argv = [
            GUARDED_FACTORY if each == PREFECT_FACTORY else each for each in options.pop("args")
        ]
        assert GUARDED_FACTORY in argv, (
            "Prefect starts its temporary server in an unknown way, so the server would run "
            "without Millrace's origin check"
        )
        return subprocess.Popen(argv, **options, env=environment, start_new_session=True)


def guard_temporary_server() -> None:
    """Put the origin check before the temporary Prefect server of this process, if one is started.

    The server also gets its own session, and ends with this process.
    """
    from prefect.server.api import server

    server.subprocess = _GuardedSubprocess()  # type: ignore[assignment, attr-defined]


def end_orphaned_servers(home: str) -> None:
    """End the temporary servers of this home whose commands no longer run."""
    orphans = []
    for process in processes.find_marked(TEMPORARY_VARIABLE, "1"):
        with suppress(psutil.Error, OSError):
            variables = process.environ()
            command = variables.get(COMMAND_VARIABLE, "")
            is_ours = variables.get(HOME_VARIABLE) == home and command != ""
            if is_ours and not psutil.pid_exists(int(command)):
                orphans.append(process)
    processes.end_processes(orphans, END_SECONDS)


def create_temporary_app() -> ASGIApp:
    """Return the guarded application of a temporary server, which ends with its command."""
    command = os.environ.get(COMMAND_VARIABLE, "")
    if command.isdecimal():
        threading.Thread(target=_exit_with_parent, args=(int(command),), daemon=True).start()
    from prefect.server.api.server import create_app

    return OriginCheck(create_app(), POLICY)


def poll_rarely() -> None:
    """Have the worker of Prefect's background tasks look for work once a second.

    By default it looks every 100 ms for tasks and every 250 ms for tasks that are due, which takes
    1.5 % of a core for ever. Nothing that a user waits for is such a task.
    """
    from prefect.server.api import background_workers

    module: Any = background_workers
    polls_rarely = {"minimum_check_interval": POLL, "scheduling_resolution": POLL}
    module.Worker = partial(module.Worker, **polls_rarely)


def _exit_with_parent(command: int) -> None:
    """End this process when its parent is no longer the process with the id `command`."""
    while os.getppid() == command:
        time.sleep(WATCH_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


def main() -> None:
    """Serve until SIGTERM."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from millrace.serving.http_server import run_server

    poll_rarely()
    server = get_current_settings().server
    run_server(
        OriginCheck(create_app(final=True), POLICY),
        host=LOOPBACK,
        port=load().prefect_port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
