"""Starts Python programs in a process that has imported their libraries already.

`python -m millrace.models.common.fork_server SOCKET MODULE…` imports the modules and forks itself
for every client (`fork_client`). So torch and Ray Train are imported once, which takes 2 to 3 s of
a core, and not again by each worker. The processes also share the memory of what is imported.

A program gets its client's arguments, environment, current folder, stdin, stdout and stderr. What
an import has read from the environment is the server's, so a client whose environment differs in
such a variable starts its program itself.

The socket's folder must be private: whoever connects runs programs as this user. The server ends
with the process that started it.
"""

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from millrace.models.common.low_priority import LOW_PRIORITY, lower_priority

FDS = 3
HEADER = 8
"""Bytes of a request that say how long the rest is."""
FORKED, REFUSED = b"f", b"r"
"""The answers to a request. The client of a refused one starts its program itself."""
READ_BY_IMPORTS = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONSAFEPATH"),
    *("TORCH", "OMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_"),
)
"""Prefixes of variables that Python or a library reads when it starts or is imported."""
READ_BY_RAY = ("RAY_",)
"""Prefixes of variables that Ray reads when it is imported."""
REQUEST_SECONDS = 5.0
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Request:
    """A program to run.

    Attributes:
        program: a Python file, or the name of a module.
        arguments: its arguments.
        environment: all its environment variables.
        folder: its current folder.
        waits: whether the client waits for the end; the program is killed if the client is gone.
    """

    program: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    waits: bool


@dataclass
class ForkServer:
    """Forks for one request after the other.

    Attributes:
        listener: the socket that clients connect to.
        clients: for each running program whose client waits, the connection.
    """

    listener: socket.socket
    clients: dict[int, socket.socket] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._began_with = dict(os.environ)
        self._selector = selectors.DefaultSelector()
        self._wakeup, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakes = wakes
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def serve(self, *, until_idle: bool = False) -> Request | None:
        """Fork for every request; return the request in each child.

        Args:
            until_idle: return None in the server as soon as nothing waits.
        """
        while True:
            ready = self._selector.select(0 if until_idle else None)
            for key, _ in ready:
                if key.fileobj is self.listener:
                    if (request := self._accept()) is not None:
                        return request
                elif key.fd == self._wakeup:
                    os.read(self._wakeup, 1024)
                    self._reap()
                else:
                    self._drop(key.data)
            if until_idle and not ready:
                return None

    def _accept(self) -> Request | None:
        """Fork for one client; return its request in the child, None in the server."""
        client, _ = self.listener.accept()
        try:
            client.settimeout(REQUEST_SECONDS)
            request, fds = receive(client)
        except (OSError, ValueError, TypeError):
            client.close()
            return None
        ours, read = (
            read_by_imports(each, has_ray="ray" in sys.modules)
            for each in (self._began_with, request.environment)
        )
        if read != ours:
            different = sorted({name for name, _ in read.items() ^ ours.items()})
            sys.stderr.write(f"not forked: other {', '.join(different)}\n")
            _answer(client, REFUSED)
            _close(client, fds)
            return None
        if _is_gone(client):  # it has started the program itself by now
            _close(client, fds)
            return None
        pid = os.fork()
        if pid == 0:
            self._become(request, fds, client)
            return request
        _answer(client, FORKED)
        if request.waits:
            _close(None, fds)
            self.clients[pid] = client
            self._selector.register(client, selectors.EVENT_READ, pid)
        else:
            _close(client, fds)
        return None

    def _become(self, request: Request, fds: list[int], client: socket.socket) -> None:
        """Turn this child into the process of a program."""
        if LOW_PRIORITY in request.environment:
            lower_priority()  # as long as it has one thread; the session is a group too
        else:
            os.setpgid(0, 0)  # Ray ends a worker by a signal to its group
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for opened in (self.listener, client, *self.clients.values()):
            opened.close()
        self._selector.close()
        os.close(self._wakeup)
        os.close(self._wakes)
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
            os.close(fd)
        if request.waits:
            end_with_parent()
        os.chdir(request.folder)
        os.environ.clear()
        os.environ.update(request.environment)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # or all children would draw the same numbers

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client = self.clients.pop(pid, None)
                if client is not None:
                    self._selector.unregister(client)
                    _answer(client, str(os.waitstatus_to_exitcode(status)).encode())
                    client.close()

    def _drop(self, pid: int) -> None:
        """Kill the program of a client that is gone."""
        client = self.clients.pop(pid, None)
        if client is not None:  # else it ended in the same moment
            self._selector.unregister(client)
            client.close()
            os.kill(pid, signal.SIGKILL)


def _answer(client: socket.socket, text: bytes) -> None:
    with suppress(OSError):  # the client may be gone
        client.sendall(text)


def _is_gone(client: socket.socket) -> bool:
    """Return whether a client has closed its connection, on which it sends no more."""
    client.settimeout(0)
    try:
        return not client.recv(1)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        client.settimeout(REQUEST_SECONDS)


def _close(client: socket.socket | None, fds: list[int]) -> None:
    if client is not None:
        client.close()
    for fd in fds:
        os.close(fd)


def read_by_imports(environment: Mapping[str, str], *, has_ray: bool) -> dict[str, str]:
    """Return the variables that a forked program cannot change, because they were read before.

    Args:
        environment: environment variables.
        has_ray: whether Ray was imported.
    """
    read = (*READ_BY_IMPORTS, *(READ_BY_RAY if has_ray else ()))
    return {name: value for name, value in environment.items() if name.startswith(read)}


def receive(client: socket.socket) -> tuple[Request, list[int]]:
    """Return a client's request, and its stdin, stdout and stderr.

    Raises:
        ValueError: it is no request.
    """
    head, fds, _, _ = socket.recv_fds(client, HEADER, FDS)
    try:
        if len(fds) != FDS or len(head) != HEADER:
            raise ValueError("a request begins with its length and three files")
        left, chunks = int.from_bytes(head, "big"), []
        while left:
            chunk = client.recv(min(left, 1 << 16))
            if not chunk:
                raise ValueError("the request is cut short")
            chunks.append(chunk)
            left -= len(chunk)
        return Request(**json.loads(b"".join(chunks))), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    libc: Any = ctypes.CDLL(None)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def listen(path: str) -> socket.socket:
    """Return a socket for clients, which only this user may connect to."""
    listener = socket.socket(socket.AF_UNIX)
    os.fchmod(listener.fileno(), 0o600)  # Linux gives the mode to the path, at once
    listener.bind(path)
    listener.listen()
    return listener


def run(request: Request) -> NoReturn:
    """Run a program in this process, and end it.

    Python would take a second to clear thousands of modules; this process ends without that.
    """
    sys.argv = [request.program, *request.arguments]
    status: Any = 0
    try:
        if request.program.endswith(".py"):
            runpy.run_path(request.program, run_name="__main__")
        else:
            runpy.run_module(request.program, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code
    except BaseException:  # noqa: BLE001  (as Python ends a program)
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        sys.stderr.write(f"{status}\n")
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status or 0)


def main() -> None:
    """Import the modules on the command line, and fork for every client meanwhile and after it."""
    path, *modules = sys.argv[1:]
    end_with_parent()
    server = ForkServer(listen(path))
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:  # the program that needs it says so
            sys.stderr.write(f"not imported: {error}\n")
        gc.freeze()  # a child's garbage collection would copy all that is imported
        if (request := server.serve(until_idle=True)) is not None:
            run(request)
    if (request := server.serve()) is not None:
        run(request)


if __name__ == "__main__":
    main()
