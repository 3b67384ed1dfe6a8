"""Prefect's temporary server, which a command has where `millrace up` does not run.

It is the command's child. In its session it would get the terminal's Ctrl-C as well, and be gone
when the flow wants to tell it how it ended, which it then tries for minutes. And a command that is
killed leaves it behind.
"""

import os
import subprocess
from contextlib import suppress
from typing import Any

import psutil

from flows import processes

TEMPORARY = "PREFECT__SERVER_EPHEMERAL"
"""Set to 1 by Prefect in the environment of such a server."""
HOME, COMMAND = "MILLRACE_HOME", "MILLRACE_COMMAND"
END_SECONDS = 5.0


class _InSessionsOfTheirOwn:
    """Stands for the module `subprocess` where Prefect starts its server."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def Popen(**options: Any) -> "subprocess.Popen[Any]":  # noqa: N802 - that is its name there
        environment = {**options.pop("env"), COMMAND: str(os.getpid())}
        return subprocess.Popen(**options, env=environment, start_new_session=True)


def keep_apart() -> None:
    """Let the temporary server of this process, if it gets one, have a session of its own."""
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
