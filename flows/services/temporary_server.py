"""Prefect's temporary server, which a command has where `millrace up` does not run.

It is the command's child. In its session it would get the terminal's Ctrl-C as well, and be gone
when the flow wants to tell it how it ended, which it then tries for minutes. Prefect ends it in the
command's exit handlers, which SIGTERM and SIGKILL skip, so it looks itself whether its command is
there still (`millrace.flows.services.prefect_server`). What is left where even that failed, as by a
server that was frozen, the next command ends.
"""

import os
import subprocess
from contextlib import suppress
from typing import Any

import psutil

from millrace.flows.services import processes
from millrace.flows.services.prefect_server import COMMAND

TEMPORARY = "PREFECT__SERVER_EPHEMERAL"
"""Set to 1 by Prefect in the environment of such a server."""
HOME = "MILLRACE_HOME"
THEIRS, OURS = (
    "prefect.server.api.server:create_app",
    "millrace.flows.services.prefect_server:create",
)
END_SECONDS = 5.0


class _InSessionsOfTheirOwn:
    """Stands for the module `subprocess` where Prefect starts its server."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def Popen(**options: Any) -> "subprocess.Popen[Any]":  # noqa: N802 - that is its name there
        environment = {**options.pop("env"), COMMAND: str(os.getpid())}
        words = [OURS if word == THEIRS else word for word in options.pop("args")]
        assert OURS in words, "Prefect starts its temporary server otherwise: it would be unguarded"
        return subprocess.Popen(words, **options, env=environment, start_new_session=True)


def keep_apart() -> None:
    """Let the temporary server of this process, if it gets one, have our guard before it.

    It also has a session of its own, and ends with this process.
    """
    from prefect.server.api import server

    server.subprocess = _InSessionsOfTheirOwn()  # type: ignore[assignment, attr-defined]


def end_orphans(home: str) -> None:
    """End the temporary servers of commands of a home that were killed."""
    orphans = []
    for process in processes.marked(TEMPORARY, "1"):
        with suppress(psutil.Error, OSError):
            values = process.environ()
            command = values.get(COMMAND, "")
            if values.get(HOME) == home and command and not psutil.pid_exists(int(command)):
                orphans.append(process)
    processes.end(orphans, END_SECONDS)
