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
from millrace.models.common.ray_worker import job_file
from millrace.models.common.reachable import require_tcp
from millrace.models.common.slow_step import report_while
from millrace.models.common.start_queue import wait_turn
from millrace.models.common.warm_ray import WarmRay, default_cpus, fingerprint

log = logging.getLogger("millrace")

STARTS = 3
"""How often the embedded Ray is started: its first process has 30 s, too little on a busy machine.
"""
START_LOCK = "start.lock"


@contextmanager
def connect_to_ray(address: str, processes: int, warm: WarmRay | None = None) -> Iterator[None]:
    """Connect to Ray while the block runs.

    A block inside another one uses the outer connection. The embedded Ray and its processes stop
    at the end of the block, unless it is the one of `millrace up`.

    Args:
        address: `EMBEDDED` to start the embedded Ray, or the address of a cluster.
        processes: number of workers or actors, each of which reserves one CPU.
        warm: the Ray of `millrace up`, used instead of an embedded one if it can be.

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
    with ExitStack() as opened:
        opened.callback(ray.shutdown)
        cpus = None
        if address != EMBEDDED:
            if address != "auto":
                require_tcp(address, service="Ray", setting="RAY_ADDRESS")
            _init(address)
        else:
            if warm is not None:
                cpus = opened.enter_context(_join_warm(warm, processes))
            if cpus is None:
                _start_embedded(processes)
        _configure_data(cpus)
        yield


class RaySession:
    """A connection to Ray that begins when it is first needed, and ends at the end of the block.

    Args:
        address: as in `connect_to_ray`.
        processes: as in `connect_to_ray`.
        warm: as in `connect_to_ray`.
    """

    def __init__(self, address: str, processes: int, warm: WarmRay | None = None) -> None:
        self._address, self._processes, self._warm = address, processes, warm
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
            self._opened.enter_context(connect_to_ray(self._address, self._processes, self._warm))


@contextmanager
def _join_warm(warm: WarmRay, processes: int) -> Iterator[int | None]:
    """Connect to the Ray of `millrace up`, and disconnect at the end of the block.

    Yield the logical CPUs of this command's share. Yield None if this Ray cannot be used: it is
    too small, all shares are taken, it does not start, or it differs from this process.
    """
    with warm.share() as has_share:
        cpus = _connect_warm(warm, processes) if has_share else None
        job = "" if cpus is None else ray.get_runtime_context().get_job_id()
        if not has_share:
            log.info("the Ray of `millrace up` is in full use; starting another one")
        try:
            yield cpus
        finally:
            if cpus is not None:
                ray.shutdown()
                # With the command's secrets. Until now a worker may have been about to read it.
                job_file(warm.run.parent, job).unlink(missing_ok=True)


def _connect_warm(warm: WarmRay, processes: int) -> int | None:
    if not warm.has_room(processes):
        return None
    found = warm.wait_until_ready()
    if found is None:
        log.warning("the Ray of `millrace up` did not start; starting another one")
        return None
    difference = fingerprint(os.environ).difference(found.fingerprint)
    if difference:
        hint = "starting another one; `millrace down` and `millrace up` bring it up to date"
        log.warning("the Ray of `millrace up` is not used: %s; %s", difference, hint)
        return None
    try:
        require_tcp(found.address, service="Ray", setting="RAY_ADDRESS")
        _init(found.address)
    except TransientError as error:
        log.warning("the Ray of `millrace up` cannot be reached (%s); starting another one", error)
        ray.shutdown()
        return None
    warm.write_job(ray.get_runtime_context().get_job_id())
    return found.cpus


def _start_embedded(processes: int) -> None:
    folder = ray_folder()
    options = {
        "num_cpus": default_cpus(processes),
        "include_dashboard": False,
        "_temp_dir": str(folder),
    }
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


def _configure_data(cpus: int | None) -> None:
    """Make Ray Data quiet, and fast on a small machine.

    Args:
        cpus: the most logical CPUs that it may use; None: all.
    """
    context = ray.data.DataContext.get_current()
    limits = ray.data.ExecutionResources.for_limits(cpu=cpus)
    context.execution_options.resource_limits = limits
    context.enable_progress_bars = False
    # Every failure is raised as well, and the caller reports it.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
