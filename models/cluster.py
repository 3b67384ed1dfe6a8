"""The connection to Ray: the embedded one, or a cluster."""

import logging
from typing import Any

import ray
import ray.data

from models.errors import TransientError


def connect(address: str, cores: int) -> None:
    """Connect to Ray if this process is not connected yet.

    Args:
        address: `local` to start the embedded Ray, or the address of a cluster.
        cores: logical CPUs of the embedded Ray. More than the machine may have, so that data
            tasks can be scheduled while every training worker holds a CPU.

    Raises:
        TransientError: there is no Ray at that address.
    """
    if ray.is_initialized():
        return
    embedded: dict[str, Any] = {}
    if address == "local":
        embedded = {"num_cpus": cores, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **embedded)
    except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
        raise TransientError(
            f"Ray cannot be reached at {address}",
            seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
            valid="local, or the address of a running cluster",
            hint="check RAY_ADDRESS, or unset it to use the embedded Ray",
        ) from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    # The newer reader lists files and reads footers in processes of their own, eight of them
    # before the first row: on two cores that took longer than the whole training of an example.
    context.use_datasource_v2 = False


def disconnect() -> None:
    """Leave Ray; the embedded one stops, and its processes with it."""
    if ray.is_initialized():
        ray.shutdown()
