"""Connects to the embedded Ray or to a Ray cluster."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

import psutil
import ray
import ray.data

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import EMBEDDED, has_jobs_api
from millrace.models.common.interrupts import uninterrupted
from millrace.models.common.ray_folder import ray_folder, ray_logs
from millrace.models.common.reachable import require_tcp
from millrace.models.common.slow_step import report_while
from millrace.models.common.start_queue import wait_turn

STARTS = 3
"""How often the embedded Ray is started: its first process has 30 s, too little on a busy machine.
"""
START_LOCK = "start.lock"


@contextmanager
def connect_to_ray(address: str, processes: int) -> Iterator[None]:
    """Connect to Ray while the block runs.

    A block inside another one uses the outer connection. The embedded Ray and its processes stop
    at the end of the block.

    Args:
        address: `EMBEDDED` to start the embedded Ray, or the address of a cluster.
        processes: number of workers or actors, each of which reserves one CPU.

    Raises:
        InputError: the address is that of a Jobs API.
        TransientError: no Ray answers at the address, or the embedded Ray does not start.
    """
    if has_jobs_api(address):
        raise InputError(
            "this command needs a direct connection to Ray",
            seen=f"RAY_ADDRESS={address}, a Jobs API, which only `millrace score` supports",
            valid="host:6379, on a node of the cluster, or no RAY_ADDRESS for the embedded Ray",
            hint="unset RAY_ADDRESS, or set it to another address for this command",
        )
    if ray.is_initialized():
        yield
        return
    try:
        if address == EMBEDDED:
            _start_embedded(processes)
        else:
            if address != "auto":
                require_tcp(address, service="Ray", setting="RAY_ADDRESS")
            _init(address)
        _configure_data()
        yield
    finally:
        ray.shutdown()


class RaySession:
    """A connection to Ray that begins when it is first needed, and ends at the end of the block.

    Args:
        address: as in `connect_to_ray`.
        processes: as in `connect_to_ray`.
    """

    def __init__(self, address: str, processes: int) -> None:
        self._address, self._processes = address, processes
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        """Return the session, not connected yet."""
        return self

    def __exit__(self, *error: object) -> None:
        """Disconnect, if a connection was made."""
        self._opened.close()

    def connect(self) -> None:
        """Connect, unless this process is connected; the errors are those of `connect_to_ray`."""
        if not ray.is_initialized():
            self._opened.enter_context(connect_to_ray(self._address, self._processes))


def _start_embedded(processes: int) -> None:
    # Two logical CPUs more than the workers reserve. Ray Data's tasks need a CPU as well: without a
    # free one, workers and data tasks would wait for each other for ever.
    cores = max(os.cpu_count() or 1, processes) + 2
    folder = ray_folder()
    options = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": str(folder)}
    # Commands of one user that start at once start their Rays one after the other.
    with wait_turn(folder.with_name(START_LOCK), "the start of Ray"), report_while("starting Ray"):
        for left in reversed(range(STARTS)):
            before = set(_child_processes())
            try:
                _init(EMBEDDED, **options)
                break
            except TransientError:
                if not left:
                    raise
                _end_failed_start(before)


def _end_failed_start(before: set[psutil.Process]) -> None:
    """End the processes of a failed start; Ray ends its own only when this process ends."""
    ray.shutdown()
    for process in set(_child_processes()) - before:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _child_processes() -> list[psutil.Process]:
    """Return Ray's processes among the children of this process."""
    children = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if any("/ray/" in word for word in process.cmdline()):
                children.append(process)
    return children


def _init(address: str, **options: Any) -> None:
    try:
        with uninterrupted():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises Exception itself if a node starts too slowly
        seen = str(error).splitlines()[0] if str(error) else type(error).__name__
        what = f"Ray cannot be reached at {address}"
        hint = "check RAY_ADDRESS, or unset it to use the embedded Ray"
        if address == EMBEDDED:
            what, hint = "the embedded Ray did not start", f"try again; see {ray_logs()}"
        raise TransientError(what, seen=seen, hint=hint) from error


def _configure_data() -> None:
    """Make Ray Data quiet, and fast on a small machine."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # Every failure is raised as well, and the caller reports it.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
