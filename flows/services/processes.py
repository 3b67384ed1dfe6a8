"""Find, describe and end processes of this machine."""

import socket
from contextlib import suppress

import psutil


def is_port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a server could listen on the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def describe_listener(port: int) -> str | None:
    """Return a description of the process that listens on the port; None if it cannot be found."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,):
                return describe_process(connection.pid)
    return None


def describe_process(pid: int | None) -> str | None:
    """Return `pid NUMBER, COMMAND` of a process; None if it cannot be read."""
    with suppress(psutil.Error):
        if pid is not None:
            command = " ".join(psutil.Process(pid).cmdline())
            return f"pid {pid}, {command[:120]}"
    return None


def find_marked(name: str, value: str) -> list[psutil.Process]:
    """Return the processes whose environment has the variable `name` with the value `value`.

    This also finds processes that have left their parent and their session. It leaves out this
    process and its ancestors, zombies, and the processes of other users.
    """
    this = psutil.Process()
    excluded = {this.pid, *(ancestor.pid for ancestor in this.parents())}
    marked = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in excluded and process.environ().get(name) == value:
                marked.append(process)
    return [process for process in marked if is_running(process)]


def find_process(pid: int) -> psutil.Process | None:
    """Return the process with this id, or None if there is none."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid)
    return None


def is_running(process: psutil.Process) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end_processes(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Terminate processes, kill those that still run after `seconds`, and return the survivors."""
    for process in processes:
        with suppress(psutil.Error):
            process.terminate()
    left = _wait_for_exit(processes, seconds)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return _wait_for_exit(left, 5.0)


def _wait_for_exit(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until all have ended, and return those that still run; zombies count as ended."""
    psutil.wait_procs([each for each in processes if is_running(each)], timeout=seconds)
    return [process for process in processes if is_running(process)]
