"""Connects to the embedded Ray or to a Ray cluster."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Self

import ray
import ray.data

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.fork_client import FORK_SERVER, ask
from millrace.models.common.installation import EMBEDDED, has_jobs_api
from millrace.models.common.interrupts import uninterrupted
from millrace.models.common.reachable import require_tcp
from millrace.models.common.slow_step import report_while
from millrace.models.common.user_code import pickle_by_value_for_ray
from millrace.models.ray.embedded import take_embedded
from millrace.models.ray.warm import ReadyRay, WarmRay, fingerprint
from millrace.models.ray.worker import (
    JOB,
    RAYLET,
    job_file,
    job_server,
    worker_environment,
)

JOB_SERVER = "millrace.models.ray.job_fork_server"

log = logging.getLogger("millrace")


@contextmanager
def connect_to_ray(
    address: str,
    processes: int,
    warm: WarmRay | None = None,
    imports: Sequence[str] = (),
    job_imports: Sequence[str] = (),
) -> Iterator[None]:
    """Connect to Ray while the block runs.

    A block inside another one uses the outer connection. The embedded Ray and its processes stop
    at the end of the block, unless it is the one of `millrace up`.

    Args:
        address: `EMBEDDED` to start the embedded Ray, or the address of a cluster.
        processes: number of workers or actors, each of which reserves one CPU.
        warm: the Ray of `millrace up`, used instead of an embedded one if it can be.
        imports: modules that the workers of an embedded Ray need.
        job_imports: modules that they need as well, and that import Ray. If the workers are forks,
            these modules are imported once for all of them, from now on.

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
        joined = None
        if address != EMBEDDED:
            if address != "auto":
                require_tcp(address, service="Ray", setting="RAY_ADDRESS")
            _init(address)
            opened.callback(ray.shutdown)
        else:
            if warm is not None:
                joined = opened.enter_context(_join_warm(warm, processes, job_imports))
            if joined is None:
                _join_embedded(processes, imports, job_imports, opened)
        _configure_data(joined.cpus if joined else None)
        yield


class RaySession:
    """A connection to Ray that begins when it is first needed, and ends at the end of the block.

    Args:
        address: as in `connect_to_ray`.
        processes: as in `connect_to_ray`.
        warm: as in `connect_to_ray`.
        imports: as in `connect_to_ray`.
        job_imports: as in `connect_to_ray`.
    """

    def __init__(
        self,
        address: str,
        processes: int,
        warm: WarmRay | None = None,
        imports: Sequence[str] = (),
        job_imports: Sequence[str] = (),
    ) -> None:
        self._connected = partial(
            connect_to_ray, address, processes, warm, imports=imports, job_imports=job_imports
        )
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
            self._opened.enter_context(self._connected())


@contextmanager
def _join_warm(
    warm: WarmRay, processes: int, job_imports: Sequence[str]
) -> Iterator[ReadyRay | None]:
    """Connect to the Ray of `millrace up`, and disconnect at the end of the block.

    Yield None if this Ray cannot be used: it is too small, all shares are taken, it does not start,
    or it differs from this process.
    """
    with warm.share() as has_share:
        found = _connect_warm(warm, processes) if has_share else None
        job = ray.get_runtime_context().get_job_id() if found else ""
        if not has_share:
            log.info("the Ray of `millrace up` is in full use; starting another one")
        try:
            with _forks_from(found, job, job_imports) if found else nullcontext():
                yield found
        finally:
            if found is not None:
                ray.shutdown()
                # With the command's secrets. Until now a worker may have been about to read it.
                job_file(warm.folder, job).unlink(missing_ok=True)


def _connect_warm(warm: WarmRay, processes: int) -> ReadyRay | None:
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
    return found


def _join_embedded(
    processes: int, imports: Sequence[str], job_imports: Sequence[str], opened: ExitStack
) -> None:
    """Connect to a Ray of this command alone, which ends when the stack is closed."""
    embedded = take_embedded(processes, imports)
    opened.callback(embedded.close)
    found = embedded.wait_until_ready()
    _init(found.address)
    job = ray.get_runtime_context().get_job_id()
    embedded.warm.write_job(job)
    opened.enter_context(_forks_from(found, job, job_imports))
    opened.callback(ray.shutdown)


@contextmanager
def _forks_from(found: ReadyRay, job: str, job_imports: Sequence[str]) -> Iterator[None]:
    """Have `run_in_subprocess` fork the server of this Ray, and the workers that of their job."""
    if not found.fork_server:
        yield
        return
    with ExitStack() as opened:
        if job_imports and (server := _begin_job_server(found, job, job_imports)) is not None:
            opened.callback(server.close)  # which ends it
            opened.callback(Path(job_server(found.fork_server, job)).unlink, missing_ok=True)
        os.environ[FORK_SERVER] = found.fork_server
        opened.callback(os.environ.pop, FORK_SERVER, None)
        yield


def _begin_job_server(found: ReadyRay, job: str, modules: Sequence[str]) -> "socket.socket | None":
    """Begin to start a job's fork server, as a fork of the one that has no Ray, and not wait.

    A worker that comes before it listens is a fork of the other one.
    """
    path = job_server(found.fork_server, job)
    environment = worker_environment(os.environ, {JOB: job, RAYLET: str(found.raylet)})
    with open(os.devnull) as nothing:
        files = (nothing.fileno(), 2, 2)
        return ask(
            found.fork_server, JOB_SERVER, [path, *modules], environment, waits=True, files=files
        )


def _init(address: str) -> None:
    pickle_by_value_for_ray()
    try:
        with report_while("connecting to Ray"), uninterrupted():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises Exception itself
        ray.shutdown()
        raise TransientError(
            f"Ray cannot be reached at {address}",
            seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="check RAY_ADDRESS, or unset it to use the embedded Ray",
        ) from error


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
