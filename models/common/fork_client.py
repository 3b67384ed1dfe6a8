"""Runs a Python program in a fork of a `fork_server`, or by itself if the server cannot do it.

`python -ISB fork_client.py SOCKET PROGRAM [ARGUMENTS…]` ends as the program ends, so to its caller
it is the program: it has the same stdin, stdout, stderr and exit status, and killing it kills the
program.

It imports the standard library only, so that it takes milliseconds.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

FORK_SERVER = "MILLRACE_FORK_SERVER"
"""The variable with the socket of the fork server, where there is one."""
FORKED = b"f"
ANSWER_SECONDS = 20.0
"""Time in which a server answers; it does not while it imports a module.

Ray gives a worker 60 s to start, in which it may ask two servers and then start by itself.
"""


def fork(
    path: str,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    waits: bool,
) -> socket.socket | None:
    """Have a program started, and return the connection to the server; None if it was not started.

    The arguments are those of `ask`, and the program gets this process's stdin, stdout and stderr.
    """
    server = ask(path, program, arguments, environment, waits=waits)
    if server is None:
        return None
    try:
        if server.recv(1) == FORKED:
            server.settimeout(None)
            return server
    except OSError:
        pass
    server.close()
    return None


def ask(
    path: str,
    program: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    waits: bool,
    files: Sequence[int] = (0, 1, 2),
) -> socket.socket | None:
    """Ask for the start of a program, and return the connection; None if the server is gone.

    Args:
        path: the server's socket.
        program: a Python file, or the name of a module.
        arguments: its arguments.
        environment: all its environment variables.
        waits: whether the program is killed when the connection is closed.
        files: the descriptors of its stdin, stdout and stderr.
    """
    request = {
        "program": program,
        "arguments": list(arguments),
        "environment": dict(environment),
        "folder": os.getcwd(),
        "waits": waits,
    }
    body = json.dumps(request).encode()
    server = socket.socket(socket.AF_UNIX)
    try:
        server.settimeout(ANSWER_SECONDS)
        server.connect(path)
        socket.send_fds(server, [len(body).to_bytes(8, "big")], list(files))
        server.sendall(body)
        return server
    except OSError:
        server.close()
        return None


def main() -> None:
    """Run the program on the command line, and end as it ends."""
    path, program, *arguments = sys.argv[1:]
    server = fork(path, program, arguments, os.environ, waits=True)
    if server is None:
        start = [program] if program.endswith(".py") else ["-P", "-m", program]
        os.execv(sys.executable, [sys.executable, *start, *arguments])  # noqa: S606
    status = -signal.SIGKILL  # if the server ended: the program ended with it
    with suppress(OSError):
        status = int(server.recv(16) or status)
    if status < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main()
