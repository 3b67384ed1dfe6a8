"""The connection to Ray: the embedded one, or a cluster."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import ray
import ray.data

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import EMBEDDED, has_jobs_api
from millrace.models.common.interrupts import uninterrupted
from millrace.models.common.ray_folder import ray_folder, ray_logs
from millrace.models.common.reachable import require_tcp


@contextmanager
def connected(address: str, processes: int) -> Iterator[None]:
    """Be connected to Ray for the length of the block.

    Inside another such block it is the outer one's connection, and stays. The embedded Ray stops
    at the end, and its processes with it.

    Args:
        address: `EMBEDDED` to start the embedded Ray, or the address of a cluster.
        processes: how many workers or actors will hold a CPU each.

    Raises:
        InputError: it is the address of a Jobs API.
        TransientError: there is no Ray at that address.
    """
    if has_jobs_api(address):
        raise InputError(
            "this runs on a Ray that it connects to itself",
            seen=f"RAY_ADDRESS={address}, a Jobs API, which `millrace score` alone takes",
            valid="host:6379, on a node of the cluster, or no RAY_ADDRESS for the embedded Ray",
            hint="unset RAY_ADDRESS, or give another one for this command",
        )
    if ray.is_initialized():
        yield
        return
    try:
        _connect(address, processes)
        yield
    finally:
        ray.shutdown()


def _connect(address: str, processes: int) -> None:
    if address == EMBEDDED:
        _start_embedded(processes)
    else:
        if address != "auto":
            require_tcp(address, service="Ray", setting="RAY_ADDRESS")
        _init(address)
    _quiet()


def _start_embedded(processes: int) -> None:
    # Logical CPUs, two more than are held all the time: data tasks must find a place
    # while every worker holds one, or they wait for each other for ever.
    cores = max(os.cpu_count() or 1, processes) + 2
    options = {"num_cpus": cores, "include_dashboard": False, "_temp_dir": str(ray_folder())}
    before = set(_children())
    try:
        _init(EMBEDDED, **options)
    except TransientError:
        # Its first process gets 30 s to start, which a busy machine may not give it: once more.
        ray.shutdown()
        # Ray ends what it has started of itself when this process ends, and not before.
        for process in set(_children()) - before:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _init(EMBEDDED, **options)


def _children() -> list[psutil.Process]:
    """Return the processes of Ray that this one started."""
    found = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if any("/ray/" in word for word in process.cmdline()):
                found.append(process)
    return found


def _init(address: str, **options: Any) -> None:
    try:
        with uninterrupted():
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # a node that takes too long to start is just that to Ray
        seen = str(error).splitlines()[0] if str(error) else type(error).__name__
        if address == EMBEDDED:
            what, hint = (
                "the embedded Ray did not start",
                f"try again; why is in {ray_logs()}",
            )
        else:
            what = f"Ray cannot be reached at {address}"
            hint = "check RAY_ADDRESS, or unset it to use the embedded Ray"
        raise TransientError(what, seen=seen, hint=hint) from error


def _quiet() -> None:
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # What fails is raised too, and told by whoever takes it.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    # The newer reader lists files and reads footers in processes of their own, eight of them
    # before the first row: on two cores that took longer than the whole training of an example.
    context.use_datasource_v2 = False
