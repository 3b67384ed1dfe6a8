"""Looking at and ending processes of this machine."""

import socket
from contextlib import suppress

import psutil


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def listener(port: int) -> str | None:
    """Describe the process that listens on the port, or return None if it cannot be told."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,):
                return describe(connection.pid)
    return None


def describe(pid: int | None) -> str | None:
    """Return `pid NUMBER, COMMAND` of a process, or None."""
    with suppress(psutil.Error):
        if pid is not None:
            command = " ".join(psutil.Process(pid).cmdline())
            return f"pid {pid}, {command[:120]}"
    return None


def marked(name: str, value: str) -> list[psutil.Process]:
    """Return the processes that were started with the variable `name` set to `value`.

    This finds what has left its parent and its session too. Left out: this process and its
    ancestors, zombies, and the processes of other users.
    """
    here = psutil.Process()
    spared = {here.pid, *(ancestor.pid for ancestor in here.parents())}
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in spared and process.environ().get(name) == value:
                found.append(process)
    return [process for process in found if is_running(process)]


def find(pid: int) -> psutil.Process | None:
    """Return the process of this id, or None."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def is_running(process: psutil.Process) -> bool:
    """Return whether the process runs: a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Terminate the processes, kill what is left after `seconds`, and return what survived."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    _wait(processes, seconds)
    left = [process for process in processes if is_running(process)]
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _wait(left, 5.0)
    return [process for process in left if is_running(process)]


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until all have ended; the parent of some is another process, which must reap them."""
    psutil.wait_procs([each for each in processes if is_running(each)], timeout=seconds)
